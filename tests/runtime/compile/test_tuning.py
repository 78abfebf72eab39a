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
from hocket.core.program.tuning import MOST_UNROLLED, Tuning, tuned
from hocket.runtime import fused
from hocket.runtime.compile.tuning import (
    SHORTEST_GRAPH,
    compiler_options,
    tuning_for,
    tuning_here,
)
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
        loops = list(scans(jax.make_jaxpr(ppo.step)(state).jaxpr))
    rollout = next(params for params in loops if params["length"] == LENGTH)
    assert rollout["unroll"] == at_once


def gpu(kind: str = "NVIDIA H200", capability: str = "9.0") -> Any:
    return SimpleNamespace(platform="gpu", device_kind=kind, compute_capability=capability)


def test_a_gpu_unrolls_and_has_kernels() -> None:
    """The kernels are for one device alone, which multiplies TF32."""
    assert tuning_for([gpu()]) == Tuning(unroll=MOST_UNROLLED, kernels=True)
    assert tuning_for([gpu("NVIDIA V100", "7.0")]) == Tuning(unroll=MOST_UNROLLED)
    assert tuning_for([gpu("AMD Instinct MI300X", "9.4")]) == Tuning(unroll=MOST_UNROLLED)
    assert tuning_for([gpu(), gpu()]) == Tuning(unroll=MOST_UNROLLED)


def test_an_exact_program_is_the_same_on_all_devices() -> None:
    cpu = SimpleNamespace(platform="cpu")
    assert tuning_for([gpu()], exact=True) == tuning_for([cpu]) == Tuning()


def test_a_device_that_the_user_has_chosen_is_not_tuned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu()])
    assert tuning_here().kernels and tuning_here(exact=True) == Tuning()
    with jax.default_device(jax.devices("cpu")[0]):
        assert tuning_here() == Tuning()


def test_kernels_in_a_row_are_one_launch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert compiler_options([gpu()]) == {SHORTEST_GRAPH: 2}
    assert compiler_options([SimpleNamespace(platform="cpu")]) == {}
    monkeypatch.setenv("XLA_FLAGS", f"--{SHORTEST_GRAPH}=5")
    assert compiler_options([gpu()]) == {}


@pytest.mark.parametrize(("of", "distribute"), [(fused, "anakin"), (programs, "actor_learner")])
def test_the_compiler_is_told(of: Any, distribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "compiler_options", lambda devices: {"xla_no_such_option": 1})
    with pytest.raises(Exception, match="xla_no_such_option"):
        hocket.run(Toy(), distribute=distribute, iterations=1)
