"""Choices that make programs faster on a GPU reach the programs that are compiled for one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.extend.core import Jaxpr, jaxprs_in_params

import hocket
from hocket import make
from hocket.algorithms import PPO
from hocket.core.program.tuning import Tuning, tuned
from hocket.runtime import fused
from hocket.runtime.compile.tuning import SHORTEST_GRAPH, compiler_options
from hocket.runtime.instance import programs
from tests.toys import Toy

LENGTH = 24


def scans(jaxpr: Jaxpr) -> Iterator[dict[str, Any]]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield eqn.params
        for inner in jaxprs_in_params(eqn.params):
            yield from scans(inner)


@pytest.mark.parametrize(("env", "at_once"), [("CartPole-v1", 8), ("Quadruped-v1", 1)])
def test_a_step_with_loops_of_its_own_is_not_unrolled(env: str, at_once: int) -> None:
    """The quadruped hides its loops, since its physics may be a kernel instead."""
    ppo = PPO(env=make(env), length=LENGTH)
    state = jax.eval_shape(lambda key: ppo.init(key, 4), jax.random.key(0))
    with tuned(Tuning(unroll=8)):
        found = list(scans(jax.make_jaxpr(ppo.step)(state).jaxpr))
    rollout = next(params for params in found if params["length"] == LENGTH)
    assert rollout["unroll"] == at_once


def test_kernels_in_a_row_are_one_launch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    gpu, cpu = ([SimpleNamespace(platform=name)] for name in ("gpu", "cpu"))
    assert compiler_options(gpu) == {SHORTEST_GRAPH: 2}
    assert compiler_options(cpu) == {}
    monkeypatch.setenv("XLA_FLAGS", f"--{SHORTEST_GRAPH}=5")
    assert compiler_options(gpu) == {}


@pytest.mark.parametrize(("of", "distribute"), [(fused, "anakin"), (programs, "actor_learner")])
def test_the_compiler_is_told(of: Any, distribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "compiler_options", lambda devices: {"xla_no_such_option": 1})
    with pytest.raises(Exception, match="xla_no_such_option"):
        hocket.run(Toy(), distribute=distribute, iterations=1)
