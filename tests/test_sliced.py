"""`sliced` on slices of a CPU: its numbers, seeds, a search, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hocket as package
from hocket import Place, Plan, PlanError, make, trace
from hocket.cluster import Cluster
from hocket.distribute import resolve
from hocket.runtime.executor import advance
from hocket.testing import SMALL, difference
from hocket.training import first_key, make_executor
from tests.front import Hocket
from tests.toys import Toy

pytestmark = pytest.mark.xdist_group("ppo")


def plan(words: str) -> Plan:
    return resolve(words)(trace(SMALL["ppo"](), 8), Cluster.local())


def test_dedicated_slices_train_without_waiting() -> None:
    result = package.run(
        SMALL["impala"](), num_envs=8, iterations=6,
        distribute="sliced:slices=3,devices=1,dedicated=true",
    )  # fmt: skip
    assert [place.name for place in result.plan.places] == ["actor", "learner"]
    assert result.plan.place("actor").replicas == 2
    assert (result.metrics["sample_age"] <= 2).all()


def test_dedicated_slices_that_wait_have_the_numbers_of_sebulba() -> None:
    """On EnvPool's environments: a process on some cores steps and acts, another learns."""
    env = make("envpool:CartPole-v1", num_threads=1)
    small: Any = SMALL["ppo"]()
    ppo = replace(small, env=env)
    states = [
        package.run(ppo, num_envs=8, iterations=4, distribute=words).state
        for words in ("sebulba:threads=1,lag=1", "sliced:slices=2,devices=1,dedicated=true,lag=1")
    ]
    assert difference(*states) <= 1e-5


def test_seeds_on_slices_are_the_seeds_of_one_program() -> None:
    states = {}
    for words in ("anakin:devices=1", "sliced:slices=2,devices=1"):
        executor = make_executor(plan(words), 3, seeds=4)
        try:
            executor.start(first_key(5, 4))
            metrics = advance(executor, 3)
            states[words] = executor.state()
        finally:
            executor.close()
        assert metrics["policy_loss"].shape == (3, 4)
    assert difference(*states.values()) <= 1e-5


def test_seeds_must_be_shared_equally() -> None:
    with pytest.raises(PlanError, match="3 seeds cannot be shared equally by 2 slices"):
        make_executor(plan("sliced:slices=2,devices=1"), 3, seeds=3)


def test_what_was_searched_is_used(
    hocket: Hocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = ["plan", "ppo", "--length", "8", "--minibatches", "2", "--epochs", "1"]
    use = [*flags, "--distribute", "sliced:search=true,devices=1"]
    refused = hocket(*use)
    assert refused.code == 2
    assert "nothing was searched for PPO" in refused.err and "--search" in refused.err
    picture = tmp_path / "surface.png"
    found = hocket.well(
        *flags, "--search", "--instances", "1", "2", "--envs", "8", "16", "--seconds", "0.2",
        "--devices", "1", "--plot", str(picture),
    )  # fmt: skip
    assert "<- best" in found and picture.stat().st_size > 5000
    assert "the best that was found here" in hocket.well(*use)


def test_what_cannot_be_drawn_is_not_searched_for(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = hocket("plan", "ppo", "--search", "--plot", "surface.png")
    assert done.code != 0 and "pip install 'hocket[plot]'" in done.err
    assert "environment steps/s" not in done.out + done.err


def test_a_search_needs_one_instance_to_compare_with(hocket: Hocket) -> None:
    refused = hocket("plan", "ppo", "--search", "--instances", "2", "4")
    assert refused.code == 2 and "with 1 among them" in refused.err


REFUSED: dict[str, tuple[Any, str]] = {
    "more devices than there are": ("sliced:devices=9", "asked for 9 devices"),
    "no slice": ("sliced:slices=0,devices=1", "cannot be cut into 0 slices"),
    "more than all of it": ("sliced:share=120,devices=1", "of 120 %"),
    "an unknown cut": ("sliced:cut=mpx,devices=1", "unknown slice backend `mpx`.*`mps`"),
    "one that cuts other devices": ("sliced:cut=mps,devices=1", "cannot be cut by `mps`"),
    "an unknown reduction": ("sliced:reduce=ring,devices=1", "unknown reduction `ring`"),
    "a single dedicated slice": ("sliced:slices=1,devices=1,dedicated=true", "are 2 or more"),
    "messages that stay on a CPU": (
        "sliced:slices=2,devices=1,dedicated=true,direct=true",
        "direct.*processes on one GPU",
    ),
    "environments that do not go round": ("sliced:slices=3,devices=1", "multiple of 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    words, message = REFUSED[case]
    with pytest.raises(PlanError, match=message):
        plan(words)


def test_a_slice_is_no_threads_device() -> None:
    parts = Cluster.local().devices[0].split(2)
    graph = trace(Toy(), 8)
    everything = ("env", "act", "learn")
    with pytest.raises(PlanError, match=r"is a slice.*launch=\"processes\""):
        Plan(graph, (Place("all", everything, parts, replicas=2),))
    with pytest.raises(PlanError, match="would have 2 slices, and it is one process"):
        Plan(graph, (Place("all", everything, parts),), launch="processes")


def test_flags_of_xla_are_for_processes() -> None:
    with pytest.raises(PlanError, match=r"--xla_x.*XLA_FLAGS yourself"):
        Plan(trace(Toy(), 8), (Place("all", ("env", "act", "learn")),), xla_flags="--xla_x")
