"""The account of an instance: what it has done and waited for, as numbers and as spans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hocket import Place, Plan, trace
from hocket.runtime.instance import account as accounts
from hocket.runtime.instance.account import Account, Wait
from hocket.runtime.observe.status import IDLE, RECEIVING, SENDING, WORKING, new_statuses
from tests.toys import Toy

PLAN = Plan(trace(Toy(), 8), (Place("actor", ("env", "act")), Place("learner", ("learn",))))
UP = next(t for t in PLAN.projection.transfers if t.source == "actor")


def account_of(place: str = "learner", average: Any = None) -> Account:
    return Account(PLAN, place, 0, new_statuses(PLAN)[1], average)


class End:
    """An end of a link from or to another instance, whose box waits as long as a test wants."""

    def __init__(self, *, sends: bool, waits_ns: int = 0) -> None:
        self.sends, self.nbytes, self.away = sends, 100, ("actor", 3)
        self.box = SimpleNamespace(waited_ns=50)
        self.link = SimpleNamespace(transfer=UP, name="actor/3 -> learner/0")
        self.waits_ns = waits_ns
        self.seen: list[Any] = []

    def move(self, account: Account) -> str:
        status = account.status
        self.seen.append(tuple(int(status[x]) for x in ("phase", "transfer", "peer")))
        self.box.waited_ns += self.waits_ns
        return "message"

    def cross(self, account: Account) -> str:
        given: Any = self
        return account.crossing(given, lambda: self.move(account))


def test_a_block_counts_as_work_until_it_ends() -> None:
    account = account_of()
    account.begin()
    assert account.status["phase"] == WORKING
    account.count_time()
    first = int(account.status["working"])
    account.end()
    assert account.status["phase"] == IDLE and account.status["working"] > first > 0


@pytest.mark.parametrize(("sends", "phase"), [(True, SENDING), (False, RECEIVING)])
def test_a_crossing_shows_whom_it_waits_for_and_counts_how_long(sends: bool, phase: int) -> None:
    account, end = account_of(), End(sends=sends, waits_ns=7)
    assert [end.cross(account) for _ in range(2)] == ["message"] * 2
    assert end.seen == [(phase, UP.id, 3)] * 2
    status = account.status
    assert status["phase"] == WORKING and status["moves"] == 2
    assert status["waited"].tolist() == [14, 0]  # for the actor, and not since the run began
    assert (status["sent"], status["messages"]) == ((200, 2) if sends else (0, 0))
    assert status["crossed"].sum() == status["crossed"][UP.id] == (200 if sends else 0)


@pytest.mark.parametrize("busy", [True, False])
def test_while_its_own_device_is_at_work_no_time_is_lost(busy: bool) -> None:
    account = account_of()
    account.work.begun("an end", SimpleNamespace(is_ready=lambda: not busy))
    End(sends=False, waits_ns=7).cross(account)
    assert account.status["waited"].sum() == (0 if busy else 7)


def test_a_wait_that_a_link_does_is_left_to_it() -> None:
    account = account_of()
    account.wait(Wait(RECEIVING, UP, (0,)))
    assert account.status["moves"] == 0 and account.status["phase"] == IDLE


@pytest.mark.parametrize(("phase", "place"), [(RECEIVING, 0), (SENDING, 1)])
def test_a_wait_for_several_counts_for_the_other_place(phase: int, place: int) -> None:
    account = account_of()
    account.spans = []
    seen: list[Any] = []

    def until(ready: Any) -> None:
        seen.append((int(account.status["phase"]), int(account.status["peer"])))
        while not ready():
            seen.append("not yet")

    turns = iter([False, False, True])
    account.wait(Wait(phase, UP, (2, 5), ready=turns.__next__, until=until))
    assert seen == [(phase, 2), "not yet", "not yet"]
    assert account.status["waited"][place] == account.status["waited"].sum() > 0
    assert account.status["phase"] == WORKING
    assert {span.name for span in account.spans} <= {UP.source if place == 0 else UP.target}


def test_spans_are_kept_only_if_wanted_and_only_some(monkeypatch: pytest.MonkeyPatch) -> None:
    account, end = account_of(), End(sends=False, waits_ns=1000)
    end.cross(account)
    assert account.spans is None
    monkeypatch.setattr(accounts, "MAX_SPANS", 3)
    account.spans, account.status["iteration"] = [], 8
    end.cross(account)
    wait, receive = account.spans
    assert (wait.instance, wait.kind, wait.name, wait.iteration) == (
        "learner/0",
        "wait",
        "actor",
        8,
    )
    assert wait.end - wait.start == pytest.approx(1e-6, rel=1e-3)
    assert (receive.kind, receive.nbytes) == ("receive", 100)
    assert receive.name == f"actor/3 -> learner/0 #{UP.id}"
    end.cross(account)
    assert len(account.spans) == 3 and account.spans_left_out == 1


def test_averages_are_counted_since_the_last_time() -> None:
    totals = iter([(2, 80, 5), (5, 200, 9), (5, 200, 9)])
    account = account_of("learner", SimpleNamespace(counts=totals.__next__))
    account.spans = []
    account.count_averages(1.0)
    assert account.status["messages"] == 2 and account.status["sent"] == 80
    account.count_averages(2.0)
    account.count_averages(3.0)  # nothing was averaged since, so there is no span
    assert account.status["messages"] == 5 and account.status["sent"] == 200
    assert account.status["waited"].tolist() == [0, 9]  # for the other replicas of its own place
    assert [(s.name, s.start, s.nbytes) for s in account.spans] == [
        ("learner", 1.0, 80), ("learner", 2.0, 120),
    ]  # fmt: skip
    account_of().count_averages(0.0)  # a place that does not average
