"""Instances are started, connected to and told what to run; what goes wrong there is told."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import Plan, trace
from hocket.runtime.launch import Command, Fate, Seat
from hocket.runtime.launch.launchers.threads import Threads
from hocket.runtime.launch.process import Assignment
from hocket.runtime.launch.shipping import unpack
from hocket.runtime.launch.starting import start
from hocket.runtime.launch.watch import InstanceError, Watch
from hocket.runtime.observe.status import new_statuses
from hocket.system.network.local import accept, listen
from tests.faults import SPLIT
from tests.runtime.launch.stand_ins import StandIn, StandInLauncher, resources
from tests.toys import Toy

graph = functools.cache(lambda: trace(Toy(), 8))


def plan_of(**options: Any) -> Plan:
    return Plan(graph(), SPLIT, **options)


@pytest.fixture(autouse=True)
def _nothing_is_left(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that the folder of the addresses is removed, however it ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    yield
    assert list(short_folder.iterdir()) == []


def started(launcher: StandInLauncher) -> tuple[Any, Watch]:
    plan = plan_of(launch=launcher.launch)
    held = resources(plan, launcher)
    watch = Watch(plan, held.memory, held.running)
    start(plan, held, watch)
    return held, watch


ENDED = Fate("process 7 ended with code 3", "the last words")
TROUBLE = {
    "it ended": (StandIn("", ENDED), "failed: process 7 ended with code 3.\nthe last words"),
    "it ended in silence": (
        StandIn(TimeoutError("process 7 said nothing"), ENDED), "failed: process 7 ended",
    ),
    "it says nothing": (
        StandIn(TimeoutError("process 7 said nothing")),
        "could not be reached: process 7 said nothing",
    ),
    "something prints before it": (
        StandIn("Welcome"), "could not be reached: the first line of a worker must be its address, "
        "`unix:PATH`, but it is 'Welcome'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TROUBLE)
def test_trouble_with_one_process_ends_all(what: str) -> None:
    member, message = TROUBLE[what]
    other = StandIn()
    launcher = StandInLauncher(lambda seat, _: member if seat.name == "actor/0" else other)
    with pytest.raises(InstanceError) as raised:
        started(launcher)
    assert str(raised.value).startswith(f"the instance `actor/0` {message}")
    assert launcher.reserved == ["actor/0", "learner/0"]
    assert member.was_killed and other.was_killed


def test_a_launcher_that_starts_no_member_is_told_what_one_has() -> None:
    first = StandIn()
    launcher = StandInLauncher(lambda seat, _: first if seat.name == "actor/0" else object())
    with pytest.raises(InstanceError, match="its result for `learner/0` has no `hello`, `poll`"):
        started(launcher)
    assert first.was_killed


class Program:
    """A program that listens as a worker does, and keeps what it is sent."""

    def __init__(self, seat: Seat, command: Command) -> None:
        self.seat, self.command = seat, command
        folder, _, name = command.argv[-3:]
        self._listening, self.address = listen(Path(folder), name)
        self.sent: list[Any] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection = accept(self._listening)
        try:
            self.sent += [connection.read(), connection.read()]
            row = self.seat.name.startswith("learner")
            connection.write(("status", self.status(5 + row)))
            connection.write(("done", {"pid": 7}))
            while True:
                self.sent.append(connection.read())
        except EOFError:
            connection.close()

    def status(self, iteration: int) -> bytes:
        statuses = new_statuses(plan_of())
        statuses["iteration"] = iteration
        return statuses[0].tobytes()

    def hello(self, seconds: float) -> str:
        return self.address

    def poll(self) -> Fate | None:
        return None if self._thread.is_alive() else Fate("ended")

    def kill(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


def test_each_process_gets_its_assignment() -> None:
    launcher = StandInLauncher(Program)
    held, _ = started(launcher)
    actor, learner = launcher.members.values()
    assert [instance.name for instance in held.running] == ["actor/0", "learner/0"]
    assert held.memory.statuses["iteration"].tolist() == [5, 6]  # which each has reported itself
    assert actor.command.env["PJRT_NPROC"] and actor.command.argv[-1] == "actor/0"
    held.running[1].tell(("run", 3))
    for instance in held.running:
        instance.hang_up()
        assert instance.member.kill(60)
    for program, place in ((actor, "actor"), (learner, "learner")):
        path, given, *commands = program.sent
        assert isinstance(given, Assignment)
        assert path == sys.path
        assert (given.place, given.index, given.memory_nbytes) == (place, 0, None)
        assert (given.digest, given.num_envs) == (graph().digest, 8)
        assert unpack(given.algorithm) == Toy()
        assert [x["name"] for x in json.loads(given.plan)["places"]] == ["actor", "learner"]
        assert commands == ([("run", 3)] if place == "learner" else [])


class Adding:
    """A worker that adds."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, a: int, b: int) -> int:
        return a + b


def test_threads_obey_until_the_run_hangs_up() -> None:
    plan = plan_of()
    held = resources(plan, Threads(), [Adding("actor/0"), Adding("learner/0")])
    watch = Watch(plan, held.memory, held.running)
    start(plan, held, watch)
    for number, instance in enumerate(held.running):
        instance.tell(("add", number, 1))
    assert watch.gather(["actor/0", "learner/0"]) == {"actor/0": 1, "learner/0": 2}
    for instance in held.running:
        instance.hang_up()
        assert instance.member.kill(60) and instance.member.poll() == Fate("ended")
