"""Gathering answers: every way in which one may never come ends the wait, by name."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

import pytest

from hocket import Channel, Plan, trace
from hocket.core.plan.data import Launch
from hocket.runtime.launch import Fate, NodeLost, watch
from hocket.runtime.launch.control import Answer, Failure
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.watch import Deadlock, DeadlockWatch, InstanceError, Watch, fate_of, lost
from hocket.runtime.observe.status import RECEIVING
from tests.faults import SPLIT
from tests.runtime.launch.stand_ins import StandIn, running
from tests.toys import Toy

NODES = Launch("nodes", one_process=False, one_program=False, shares_memory="none", nodes=True)
plan_of = functools.cache(lambda: Plan(trace(Toy(), 8), SPLIT))


@pytest.fixture(autouse=True)
def _without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.0)


def watching(**members: Any) -> Watch:
    """Return a watch over an actor and a learner, with these as their members."""
    both = {"actor": StandIn(), "learner": StandIn(), **members}
    instances = [running(f"{name}/0", member) for name, member in both.items()]
    return Watch(plan_of(), PlanMemory.create(plan_of()), instances)


def test_answers_are_gathered_by_name() -> None:
    watch = watching()
    for name, content in (("learner/0", 2), ("actor/0", 1)):
        watch.answers.put(Answer(name, "done", content))
    assert watch.gather(["actor/0", "learner/0"]) == {"actor/0": 1, "learner/0": 2}
    assert watch.gather([]) == {}


def test_a_failure_of_any_instance_ends_the_wait() -> None:
    watch, error = watching(), KeyError("w")
    watch.answers.put(Answer("learner/0", "failed", Failure("Traceback of it", error)))
    with pytest.raises(InstanceError) as raised:
        watch.gather(["actor/0"])
    assert str(raised.value) == "the instance `learner/0` failed:\nTraceback of it"
    assert raised.value.__cause__ is error


def test_a_fault_of_a_gpu_names_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "others_on_gpu", lambda plan, name: f" ({name} shares it)")
    for text, hint in (("CUDA_ERROR_ILLEGAL", " (actor/0 shares it)"), ("ValueError", "")):
        failing = watching()
        failing.answers.put(Answer("actor/0", "failed", Failure(text)))
        with pytest.raises(InstanceError) as raised:
            failing.gather(["actor/0"])
        assert str(raised.value) == f"the instance `actor/0` failed:\n{text}{hint}"


def test_a_connection_that_closes_is_a_death_or_a_silence() -> None:
    dead = StandIn(fate=Fate("process 7 ended with code 3", "the last words\n"))
    for member, end in (
        (dead, "failed: process 7 ended with code 3.\nthe last words"),
        (StandIn(), "stopped answering."),
    ):
        watch = watching(learner=member)
        watch.answers.put(Answer("learner/0", "gone"))
        with pytest.raises(InstanceError) as raised:
            watch.gather(["actor/0"])
        assert str(raised.value) == f"the instance `learner/0` {end}"


def test_an_instance_that_fails_because_a_node_is_lost() -> None:
    """The loss is told, which has broken its connection, and not its traceback."""
    lost_one = StandIn(fate=NodeLost("its node `n1` is lost, because it is off"))
    watch = watching(learner=lost_one)
    watch.answers.put(Answer("actor/0", "failed", Failure("ConnectionError")))
    with pytest.raises(InstanceError, match=r"`learner/0` failed: its node `n1` is lost"):
        watch.gather(["actor/0"])


@pytest.mark.parametrize("sign", watch.BROKEN)
def test_an_instance_that_fails_because_another_has_died(sign: str) -> None:
    """The death is told, though it is noticed later than the connection that it broke."""
    late, alive = StandIn(), iter([None])
    late.poll = lambda: next(alive, Fate("process 7 was killed by SIGKILL"))
    watching_both = watching(actor=late)
    watching_both.answers.put(Answer("learner/0", "failed", Failure(f"Traceback ...\n{sign}")))
    with pytest.raises(InstanceError, match="`actor/0` failed: process 7 was killed by SIGKILL"):
        watching_both.gather(["learner/0"])


def test_a_death_is_noticed_if_the_connection_stays_open() -> None:
    """A process that it has forked may hold it."""
    watch = watching(actor=StandIn(fate=Fate("process 7 was killed by SIGKILL")))
    with pytest.raises(InstanceError, match=r"`actor/0` failed: process 7 was .* enough memory"):
        watch.gather(["learner/0"])


def test_an_answer_from_just_before_the_end_is_read_first() -> None:
    class Ending(StandIn):
        def poll(self) -> Fate:
            if not answered:
                answered.append(True)
                watching_it.answers.put(Answer("actor/0", "failed", Failure("what it was")))
            return Fate("process 7 ended with code 1")

    answered: list[bool] = []
    watching_it = watching(actor=Ending())
    with pytest.raises(InstanceError, match="what it was"):
        watching_it.gather(["learner/0"])


def test_how_a_member_ended_is_waited_for() -> None:
    fate = Fate("ended")
    assert fate_of(StandIn(fate=fate), 0.0) == fate
    assert fate_of(StandIn(), 0.0) is None
    late = StandIn()
    late.poll = iter([None, None, fate]).__next__
    assert fate_of(late, 60.0) == fate
    assert str(lost("the instance `a/0`", StandIn(fate=fate))).endswith("`a/0` failed: ended.")


def looks(
    plan: Plan, times: list[float], monkeypatch: pytest.MonkeyPatch, moves_at: int = -1,
    lease: float = 0.0,
) -> int:  # fmt: skip
    """Return after how many looks at these times a run that waits counts as stuck, or 0."""
    clock = iter([0.0, *times])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    statuses = PlanMemory.create(plan).statuses
    statuses["phase"] = RECEIVING
    watching = DeadlockWatch(plan, statuses, lease)
    for number in range(1, len(times) + 1):
        statuses["moves"][0] += number == moves_at
        try:
            watching.look()
        except Deadlock:
            return number
    return 0


def test_a_pause_of_whoever_looks_is_not_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and `fg` nothing has moved for an hour, which does not mean that it is stuck."""
    times = [3600.0, 3601.0, 3604.5, 3605.5, 3606.5, 3607.5]
    assert looks(plan_of(), times, monkeypatch) == 6


def test_a_message_begins_the_patience_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [float(k) for k in range(1, 13)]
    assert looks(plan_of(), seconds, monkeypatch) == 6
    assert looks(plan_of(), seconds, monkeypatch, moves_at=4) == 10


def test_messages_that_are_delayed_on_purpose_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(plan_of().graph, SPLIT, {"actor -> learner": Channel(delay=4.0)})
    seconds = [float(k) for k in range(1, 13)]
    assert looks(plan, seconds, monkeypatch) == 10


def test_silence_of_a_node_within_its_lease_is_not_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [float(k) for k in range(1, 13)]
    nodes = replace(plan_of(), launch=NODES)
    assert looks(nodes, seconds, monkeypatch, lease=4.0) == 10
    assert looks(plan_of(), seconds, monkeypatch, lease=4.0) == 6
