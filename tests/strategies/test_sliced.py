"""`sliced` on slices of a CPU: numbers, seeds, the search, and errors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cases import graph_of
from tests.front import Hocket

import hocket as package
from hocket import Plan, PlanError, make
from hocket.cluster import Cluster
from hocket.runtime.channels.choice import check_transports
from hocket.runtime.executor import advance
from hocket.strategies import resolve
from hocket.system.cores import usable_cores
from hocket.testing import SMALL, difference
from hocket.training.loop import first_key, make_executor
from hocket.training.search import reason

pytestmark = [pytest.mark.xdist_group("ppo"), pytest.mark.usefixtures("forks")]


def plan(words: str) -> Plan:
    return resolve(words)(graph_of("ppo"), Cluster.local())


def test_dedicated_slices_train_without_waiting() -> None:
    result = package.run(
        SMALL["impala"](), num_envs=8, iterations=6,
        distribute="sliced:slices=3,devices=1,dedicated=true",
    )  # fmt: skip
    assert [place.name for place in result.plan.places] == ["actor", "learner"]
    assert result.plan.place("actor").replicas == 2
    assert (result.metrics["sample_age"] <= 2).all()


def test_dedicated_slices_that_wait_have_the_numbers_of_sebulba() -> None:
    """One process, on some of the cores, steps EnvPool's environments and acts; another learns."""
    env = make("envpool:CartPole-v1", num_threads=1)
    small: Any = SMALL["ppo"]()
    ppo = replace(small, env=env)
    states = [
        package.run(ppo, num_envs=8, iterations=4, distribute=words).state
        for words in ("sebulba:threads=1,lag=1", "sliced:slices=2,devices=1,dedicated=true,lag=1")
    ]
    assert difference(*states) <= 1e-5


def test_a_slice_of_each_device_learns() -> None:
    """Each learner learns from the samples of its own device, and the learners average."""
    words = "sliced:slices=2,devices=2,dedicated=true,learners=2,lag={}"
    made = plan(words.format(1))
    assert tuple(map(str, made.place("learner").on)) == ("cpu:0/cpu:1of2@50%", "cpu:1/cpu:1of2@50%")
    assert tuple(map(str, made.place("actor").on)) == ("cpu:0/cpu:0of2@50%", "cpu:1/cpu:0of2@50%")
    states = [
        package.run(SMALL["ppo"](), num_envs=8, iterations=3, distribute=way).state
        for way in ("anakin:devices=1", words.format("0,reduce=shm"))
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
    assert "there was no search yet for PPO" in refused.err and "--search" in refused.err
    picture = tmp_path / "surface.png"
    printed = hocket.well(
        *flags, "--search", "--instances", "1", "2", "--envs", "8", "--seconds", "0.2",
        "--devices", "1", "--plot", str(picture),
    )  # fmt: skip
    assert "<- best" in printed and picture.stat().st_size > 5000
    assert "the best that a search found here" in hocket.well(*use)
    # A search counts for any budget of steps, but not for another number of cores.
    assert "the best that a search found here" in hocket.well(*use, "--env-steps", "999")
    monkeypatch.setattr("hocket.cluster.devices.usable_cores", lambda: 64)
    assert hocket(*use).code == 2


def test_a_run_on_what_was_searched_is_like_any_other(
    hocket: Hocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run records the 32 environments that the search chose, so it can be resumed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = ["ppo", "--length", "8", "--minibatches", "2", "--epochs", "1", "--num-envs", "8"]
    hocket.well("plan", *flags, "--search", "--instances", "1", "--envs", "32", "--devices", "1",
                "--seconds", "0.1")  # fmt: skip
    use = ["--distribute", "sliced:search=true,devices=1", "--env-steps", "512", "--name", "found"]
    hocket.well("train", *flags, *use, "--quiet")
    config = package.load("runs/found").config
    assert config["algorithm"]["num_envs"] == 32
    assert config["distribute"] == "sliced:slices=1,devices=1"
    assert "episodes" in hocket.well("eval", "found", "--episodes", "2")
    assert "the run is finished" in hocket.well("train", *flags, *use, "--resume")
    # A later search may choose another number of environments, which this run cannot use.
    hocket.well("plan", *flags, "--search", "--instances", "1", "--envs", "16", "--devices", "1",
                "--seconds", "0.1")  # fmt: skip
    refused = hocket("train", *flags, *use, "--resume")
    assert refused.code == 2
    assert "began with 32 environments, but the strategy now chooses 16" in refused.err
    advised = ["--num-envs", "32", "--distribute", "sliced:slices=1,devices=1"]
    assert " ".join(advised) in refused.err
    assert "is finished" in hocket.well("train", *flags, *use, *advised, "--resume")
    told = hocket.well("train", "--config", "runs/found/config.json", "--name", "again")
    assert "32 environments" not in told
    assert package.load("runs/again").config["algorithm"]["num_envs"] == 32


def test_a_search_that_cannot_cut_says_so(hocket: Hocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that cannot be cut runs whole, and that is not a measurement of two instances."""
    monkeypatch.setattr("hocket.cluster.slices.cpu.Cpu.probe", lambda *_: "it has no knife.")
    out = hocket.well(
        "plan", "ppo", "--length", "8", "--minibatches", "2", "--search", "--instances", "1", "2",
        "--envs", "8", "--seconds", "0.1", "--devices", "1",
    )  # fmt: skip
    assert "2 x 8 environments: cpu:0 is used whole, not as 2 slices: it has no knife." in out
    assert "best: 1 x 8 environments: one instance is best" in out


def test_what_a_search_finds_must_be_kept_somewhere(
    hocket: Hocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that cannot save its results or its plot is refused before anything is measured."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused = hocket("plan", "ppo", "--search")
    assert refused.code == 2 and "could not be stored" in refused.err
    assert "Set XDG_CACHE_HOME to a folder" in refused.err
    monkeypatch.delenv("XDG_CACHE_HOME")
    refused = hocket("plan", "ppo", "--search", "--plot", str(tmp_path / "file" / "a.png"))
    assert refused.code == 2 and "environment steps/s" not in refused.out


def test_a_run_says_what_its_strategy_has_to_say(hocket: Hocket) -> None:
    slices = usable_cores() + 1
    out = hocket.well(
        "train", "ppo", "--length", "8", "--minibatches", "2", "--num-envs", str(2 * slices),
        "--env-steps", "128", "--distribute", f"sliced:slices={slices},devices=1",
        "--seeds", str(slices),
    )  # fmt: skip
    assert f"note: {slices} slices of cpu:0 take turns on {usable_cores()} cores" in out


def test_a_point_that_fails_says_why() -> None:
    failed = "the instance `slice/0` failed:\nTraceback (most recent call last):\n  File ..., in x"
    error = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory"
    more = "For simplicity, JAX has removed its internal frames\n(it shares gpu:0 with slice/1)"
    assert reason("\n".join([failed, error, more])) == error
    assert reason("MPS does not start: no.\nIts log says\n...") == "MPS does not start: no."
    assert reason("") == "no reason was given"


def test_what_cannot_be_drawn_is_not_searched_for(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = hocket("plan", "ppo", "--search", "--plot", "surface.png")
    assert done.code != 0 and "pip install 'hocket[plot]'" in done.err
    assert "environment steps/s" not in done.out + done.err


NO_SEARCH = {
    "--search --instances 2 4": "with 1 among them",
    "--search --devices 0": "the search was asked for 0 devices, but the devices are cpu:0",
    "--search --devices 9": "the search was asked for 9 devices",
    "--search --distribute anakin": "--distribute has no effect with --search",
    "--search --svg plan.svg": "--svg has no effect with --search",
    "--plot surface.png": "--plot has no effect without --search: add --search, or leave it out",
    "--envs 8": "--envs has no effect without --search",
}


@pytest.mark.parametrize("flags", NO_SEARCH)
def test_a_search_refused(hocket: Hocket, flags: str) -> None:
    refused = hocket("plan", "ppo", *flags.split())
    assert refused.code == 2 and NO_SEARCH[flags] in refused.err


REFUSED: dict[str, tuple[Any, str]] = {
    "more devices than there are": ("sliced:devices=9", "asked for 9 devices"),
    "no slice": ("sliced:slices=0,devices=1", "cannot be cut into 0 slices"),
    "more than all of it": ("sliced:share=120,devices=1", "of 120 %"),
    "an unknown cut": ("sliced:cut=mpx,devices=1", "unknown slice backend `mpx`.*`mps`"),
    "one that cuts other devices": ("sliced:cut=mps,devices=1", "cannot be cut by `mps`"),
    "a single dedicated slice": (
        "sliced:slices=1,devices=1,dedicated=true",
        "at least 1 must learn, and at least 1 must act. Use more `slices`",
    ),
    "a lag of colocated slices": ("sliced:lag=1", "the option `lag` of `sliced` is for dedicated"),
    "a batch of colocated slices": ("sliced:batch=2", "`batch` of `sliced` is for dedicated"),
    "an age of colocated slices": ("sliced:max_age=2", "`max_age` of `sliced` is for dedicated"),
    "messages of colocated slices": ("sliced:direct=false", "`direct` of `sliced` is for dedica"),
    "a reduction of one that learns": (
        "sliced:devices=1,dedicated=true,reduce=shm",
        "nothing averages here, so reduce=shm has no effect",
    ),
    "a reduction of one slice": ("sliced:slices=1,devices=1,reduce=shm", "nothing averages here"),
    "learners of colocated slices": (
        "sliced:learners=2",
        "`learners` of `sliced` is for dedicated",
    ),
    "learners that do not wait": (
        "sliced:slices=4,devices=1,dedicated=true,learners=2",
        "learners=2, but with lag=free only one slice can learn: use lag=1",
    ),
    "nobody who acts": (
        "sliced:slices=2,devices=1,dedicated=true,learners=2,lag=1",
        "learners=2 of 2 dedicated slices: at least 1 must learn, and at least 1 must act",
    ),
    "no learner": ("sliced:devices=1,dedicated=true,learners=0", "learners=0 of 2 dedicated"),
    "slices beside what was searched": ("sliced:search=true,slices=4", "`slices`.*by the search"),
    "a share of what was searched": ("sliced:search=true,share=50", "`share`.*by the search"),
    "dedicated slices of what was searched": (
        "sliced:search=true,dedicated=true",
        "the option `dedicated` of `sliced` is chosen by the search",
    ),
    "command buffers of a CPU": ("sliced:command_buffers=true", "buffers are for GPUs"),
    "environments that do not go round": ("sliced:slices=3,devices=1", "multiple of 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    words, message = REFUSED[case]
    with pytest.raises(PlanError, match=message):
        plan(words)


def test_messages_that_stay_on_a_cpu() -> None:
    made = plan("sliced:slices=2,devices=1,dedicated=true,direct=true")
    with pytest.raises(PlanError, match=r"cannot use `one_gpu`: .* on one GPU, and these are on"):
        check_transports(made)
