"""The profile of a compiled program: each role's share of the time."""

from __future__ import annotations

import jax
import pytest

import hocket
from hocket import make
from hocket.algorithms import DQN, PPO
from hocket.runtime.fused import Fused
from hocket.runtime.observe.profile import TraceEvent, roles_of, self_times, shares

TEXT = """
HloModule jit_block

%body (p: f32[]) -> f32[] {
  %add.1 = f32[] add(p, p), metadata={op_name="jit(block)/jit(hocket.learn.update)/add"}
  %mul.2 = f32[] multiply(p, p), metadata={op_name="jit(block)/jit(hocket.learn.update)/mul"}
  %copy.3 = f32[] copy(p)
  ROOT %sin.4 = f32[] sine(p), metadata={op_name="jit(block)/jit(hocket.env.env)/sin"}
}

ENTRY %main (p: f32[]) -> f32[] {
  ROOT %while.5 = f32[] while(p)
}
"""


def test_an_operation_belongs_to_its_fragment() -> None:
    roles = roles_of(TEXT)
    assert roles["add.1"] == "learn" and roles["sin.4"] == "env"
    assert roles["copy.3"] == "learn"  # as most of its computation
    assert roles["mul_2"] == "learn"  # a GPU's kernels have no dots in their names
    assert "while.5" not in roles


def test_time_is_counted_once() -> None:
    """The time of a loop's body does not count as the loop's own."""
    line = [TraceEvent("add.1", 0, 10), TraceEvent("sin.4", 2, 6), TraceEvent("copy.3", 10, 14)]
    times = [*self_times(line), ("other", 100.0)]
    assert shares(times, roles_of(TEXT)) == {
        "env": pytest.approx(4 / 14), "learn": pytest.approx(10 / 14),
    }  # fmt: skip
    assert shares([], {}) == {}
    assert shares([("dense_forward_act", 3.0)], {}) == {"act": 1.0}  # it says so itself


@pytest.mark.parametrize(
    ("algorithm", "roles"),
    [
        (PPO(env=make("CartPole-v1"), num_envs=8, length=16, hidden=(8,)), {"env", "act", "learn"}),
        (DQN(env=make("CartPole-v1"), capacity=4096), {"env", "act", "learn", "replay"}),
    ],
)
def test_a_real_program_is_told_apart(algorithm: hocket.Algorithm, roles: set[str]) -> None:
    run = Fused(hocket.plan(algorithm, distribute="anakin:devices=1"), 4)
    run.start(jax.random.key(0))
    count, metrics, shares_of_time = run.profile(4)
    assert count == 1 and len(metrics["episode_count"]) == 1
    assert set(shares_of_time) == roles and sum(shares_of_time.values()) == pytest.approx(1.0)
    assert min(shares_of_time.values()) > 0 and run.timings.profile > 0
