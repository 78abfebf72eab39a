"""The end of a crew: every instance ends, and everything that was taken is given back."""

from __future__ import annotations

import functools
import gc
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import hocket
from hocket import Free, Pair, Plan, trace
from hocket.runtime.distributed import Split
from hocket.runtime.launch import Fate, ending
from hocket.testing import difference
from tests.faults import SPLIT, all_gone, is_gone, two, workers
from tests.runtime.launch.stand_ins import StandIn, StandInLauncher, resources, running
from tests.toys import Toy


@pytest.mark.usefixtures("nothing_is_left")
def test_leaving_the_loop_ends_the_workers() -> None:
    reports = hocket.iterate(Toy(), distribute=two, launch="processes")
    report, pids = next(reports), workers()
    state = report.state
    assert sorted(pids) == ["actor/0", "learner/0"] and not any(map(is_gone, pids.values()))
    assert isinstance(report.executor, Split)
    crossed = report.executor.nbytes()
    reports.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert all_gone(pids)
    for _ in range(2):
        report.executor.close()
        assert difference(report.state, state) == 0.0
        assert report.executor.nbytes() == crossed
    with pytest.raises(RuntimeError, match="this run has ended"):
        report.executor.run(1)


@pytest.mark.usefixtures("nothing_is_left")
def test_forgetting_the_executor_ends_the_workers() -> None:
    executor = Split(hocket.plan(Toy(), distribute=two, launch="processes"))
    executor.start(jax.random.key(0))
    pids = workers()
    assert len(pids) == 2 and not any(map(is_gone, pids.values()))
    del executor
    gc.collect()
    assert all_gone(pids)


plan_of = functools.cache(lambda: Plan(trace(Toy(), 8), SPLIT))


class Noting:
    """A worker that notes what is done to it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def disconnect(self) -> None:
        self._log.append(f"disconnect {self.name}")

    def end(self, *, at_rest: bool) -> None:
        self._log.append(f"end {self.name}, {'at rest' if at_rest else 'perhaps at work'}")


def test_everything_is_given_back_once_nobody_uses_it() -> None:
    log: list[str] = []
    free = Plan(plan_of().graph, SPLIT, schedule=Free(Pair("learner", "actor", max_age=1)))
    held = resources(free, StandInLauncher(), [Noting("actor/0", log), Noting("learner/0", log)])
    ledger = held.memory.ledger
    assert ledger is not None
    held.launcher.release = lambda: log.append("release the launcher")
    held.slices.close = lambda: log.append("close the slices")
    # Threads cannot be ended by force. The learner was never started.
    held.running.append(running("actor/0", StandIn(mortal=False), log))
    held.release()
    assert log == [
        "disconnect actor/0", "disconnect learner/0", "hang up actor/0",
        "end actor/0, perhaps at work", "end learner/0, at rest",
        "release the launcher", "close the slices",
    ]  # fmt: skip
    assert ledger.numbers["closed"] == 1 and held.memory.ledger is None
    assert held.running == []


def test_only_those_who_do_not_end_by_themselves_are_killed() -> None:
    held = resources(plan_of(), StandInLauncher())
    ended, hanging = StandIn(fate=Fate("ended")), StandIn()
    held.running += [running("actor/0", ended), running("learner/0", hanging)]
    held.release()
    assert (ended.was_killed, hanging.was_killed) == (False, True)
    assert isinstance(held.launcher, StandInLauncher) and held.launcher.releases == 1


def test_all_who_hang_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the grace does not add up over them."""
    clock, graces = iter([10.0, 10.0, 13.0, 18.0]), list[float]()
    monkeypatch.setattr(ending, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(ending, "fate_of", lambda member, seconds: graces.append(seconds))
    held: Any = resources(plan_of(), StandInLauncher())
    held.grace = 5.0
    held.running += [running(f"actor/{k}", StandIn()) for k in range(3)]
    held.release()
    assert graces == [5.0, 2.0, -3.0]
