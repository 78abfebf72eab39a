"""A run that fails says who failed and how within seconds, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import pytest
from jax.experimental import io_callback

import hocket
from hocket import Plan, fragment
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.runtime.distributed import Split
from hocket.runtime.launch import watch
from hocket.runtime.launch.watch import Deadlock, InstanceError
from hocket.runtime.observe.status import RECEIVING, WORKING
from hocket.strategies import resolve
from hocket.training.loop import carry_out, first_key, make_executor
from tests.faults import (
    Faulty,
    Misprojected,
    all_gone,
    two,
    wait_until,
    without_parameters,
    workers,
)
from tests.toys import Toy

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SOON = 5.0
"""How long "within seconds" may take on a busy machine."""

Launch = Literal["threads", "processes"]


class Killer(threading.Thread):
    """Kills an instance as soon as a condition holds."""

    def __init__(self, victim: str, condition: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.victim, self.condition, self.at = victim, condition, 0.0
        self.pids: dict[str, int] = {}
        self.start()

    def run(self) -> None:
        wait_until(self.condition)
        self.pids = workers()
        self.at = time.monotonic()
        os.kill(self.pids[self.victim], signal.SIGKILL)


def check_death(executor: Split, error: BaseException, killer: Killer) -> None:
    """Check that the error came soon and names the victim, all have ended, and it stays failed."""
    assert time.monotonic() - killer.at < SOON
    pid = killer.pids[killer.victim]
    assert str(error).startswith(
        f"the instance `{killer.victim}` failed: process {pid} was killed by SIGKILL."
    )
    assert all_gone(killer.pids)
    first = jax.random.key(0)
    for again in (lambda: executor.run(1), lambda: executor.start(first)):
        with pytest.raises(InstanceError) as raised:
            again()
        assert raised.value is error


def phases(executor: Split) -> dict[str, Callable[[], Any]]:
    """Return conditions under which to kill an instance, by what it is doing then."""
    actor, learner = range(2)
    now = executor.crew.statuses

    def compiles() -> bool:  # it has received the parameters, and not come to an end yet
        return bool(now["moves"][actor] == 1 and now["phase"][actor] == WORKING)

    def waits() -> bool:  # for the actor, whose environment sleeps
        asleep = now["iteration"][actor] == 1 and now["phase"][actor] == WORKING
        waiting = now["iteration"][learner] == 1 and now["phase"][learner] == RECEIVING
        return bool(asleep and waiting)

    return {"starts": workers, "compiles": compiles, "computes": waits, "waits": waits}


@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        ("starts", "actor/0"),
        ("compiles", "actor/0"),
        ("computes", "actor/0"),
        ("waits", "learner/0"),
    ],
)
def test_an_instance_is_killed_while_it(phase: str, victim: str) -> None:
    algorithm = Faulty(ballast=bytes(2**20) if phase == "starts" else b"")
    plan = hocket.plan(algorithm, distribute=two, launch="processes")
    executor = make_executor(plan, 100)
    assert isinstance(executor, Split)
    killer = Killer(victim, phases(executor)[phase])
    with pytest.raises(InstanceError) as raised:
        list(carry_out(executor, 100, first_key(0, None)))
    check_death(executor, raised.value, killer)


def test_an_instance_is_killed_while_its_state_is_fetched() -> None:
    reports = hocket.iterate(Toy(), distribute=two, launch="processes")
    report = next(reports)
    for pid in workers().values():  # none can answer before, nor end because it is told to
        os.kill(pid, signal.SIGSTOP)
    asked = time.monotonic()
    killer = Killer("learner/0", lambda: time.monotonic() > asked + 0.2)
    with pytest.raises(InstanceError) as raised:
        _ = report.state
    assert isinstance(report.executor, Split)
    check_death(report.executor, raised.value, killer)
    for again in (lambda: report.state, lambda: next(reports)):
        with pytest.raises(InstanceError, match="`learner/0` failed"):
            again()


def test_a_replica_is_killed_and_the_other_waits_for_its_mean() -> None:
    reports = hocket.iterate(Toy(), distribute="data_parallel", launch="processes")
    report, pids = next(reports), workers()
    assert sorted(pids) == ["replica/0", "replica/1"] and report.iteration == 1
    os.kill(pids["replica/1"], signal.SIGKILL)
    with pytest.raises(InstanceError, match=r"^the instance `replica/1` failed: process .*SIGKILL"):
        next(reports)
    assert all_gone(pids)


@pytest.mark.parametrize("victim", ["slice/0", "slice/3"])  # a leader, and one who has one
def test_a_slice_is_killed_while_others_wait_in_two_steps(victim: str) -> None:
    """The others wait for it in different groups. None of them waits for ever."""

    def two_by_two(graph: Graph, cluster: Cluster) -> Plan:
        return resolve("sliced:slices=2,reduce=hier")(graph, Cluster(cluster.devices[:2]))

    reports = hocket.iterate(Toy(), distribute=two_by_two)
    report, pids = next(reports), workers()
    assert len(pids) == 4 and report.executor.reductions()["slice"].chosen == "hier"
    os.kill(pids[victim], signal.SIGKILL)
    with pytest.raises(InstanceError, match=rf"^the instance `{victim}` failed: .*SIGKILL"):
        next(reports)
    assert all_gone(pids)


def test_an_instance_ends_by_itself(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    leaving = Faulty(fault="exit", seconds=2 * SOON)
    with pytest.raises(
        InstanceError, match=r"^the instance `actor/0` failed: process \d+ ended with code 3\."
    ):
        hocket.run(leaving, iterations=9, distribute=two, launch="processes")
    now, words = time.monotonic(), capfd.readouterr().out.split()
    assert words[:3] == ["the", "actor", "leaves"]  # what it printed is not lost
    os.kill(int(words[3]), signal.SIGKILL)
    assert now - float(words[-1]) < SOON


class Slow(Toy):
    """An algorithm whose learner fails at once, while its environment is busy."""

    released = threading.Event()

    def step(self, state: Any) -> Any:
        x = self.env(state.x, self.act(state.w, state.x), state.keys)
        w, key, loss = self.update(state.w, state.key, state.x)
        return state._replace(x=x, w=w, key=key), {"loss": loss, "x": x.sum(-1)}

    def noise(self, x: Any, keys: Any) -> Any:
        return io_callback(self.wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def wait(self, x: Any) -> Any:
        self.released.wait(300)
        return x

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w, key, io_callback(self.fail, jax.ShapeDtypeStruct((), w.dtype), w)

    def fail(self, w: Any) -> Any:
        raise RuntimeError("the learner is on fire")


def test_a_thread_that_failed_does_not_wait_for_the_others() -> None:
    start = time.monotonic()
    with pytest.raises(InstanceError, match=r"(?s)^the instance `learner/0` failed:.*on fire"):
        hocket.run(Slow(), iterations=9, distribute=two)
    Slow.released.set()
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_a_deadlock_says_who_waits_for_whom(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner sends no parameters, and waits for samples that need them."""
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    if launch == "threads":  # elsewhere the algorithm sees to it, when it arrives there
        monkeypatch.setattr("hocket.core.plan.data.project", without_parameters)
    with pytest.raises(Deadlock) as raised:
        hocket.run(Misprojected(), iterations=9, distribute=two, launch=launch)
    assert str(raised.value).splitlines() == [
        "the instances wait for each other, and none can go on:",
        "  actor/0 waits for w from learner/0, in iteration 0",
        "  learner/0 waits for x from actor/0, in iteration 0",
    ]


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_slow_is_not_stuck(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.3)
    monkeypatch.setattr("tests.faults._calls", iter(range(1, 99)))
    seen: list[hocket.Report] = []
    slow = Faulty(seconds=1.0)
    hocket.run(slow, iterations=2, distribute=two, launch=launch, watch=seen.append)
    actor, learner = seen[-1].places
    assert actor.busy > 0.5 and learner.waits["actor"] > 0.5  # of a second: also told when well
