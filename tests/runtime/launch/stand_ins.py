"""Launchers and members that start nothing, for tests of those who use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hocket.cluster.slices import Slices
from hocket.core.plan.data import Launch, Plan
from hocket.runtime.launch import Command, Fate, Seat
from hocket.runtime.launch.ending import Resources
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.watch import RunningInstance


class StandIn:
    """A member that says and does what a test wants."""

    def __init__(
        self, hello: str | Exception = "", fate: Fate | None = None, *, mortal: bool = True
    ) -> None:
        self.first_line, self.fate, self.mortal = hello, fate, mortal
        self.was_killed = False

    def hello(self, seconds: float) -> str:
        if isinstance(self.first_line, Exception):
            raise self.first_line
        return self.first_line

    def poll(self) -> Fate | None:
        return self.fate

    def kill(self, seconds: float) -> bool:
        self.was_killed = True
        if self.mortal:
            self.fate = Fate("was killed")
        return self.mortal


class StandInLauncher:
    """A launcher whose members a test makes, seat by seat."""

    launch = Launch("stand-in", one_process=False, one_program=False, shares_memory="none")

    def __init__(self, member: Callable[[Seat, Command], Any] = lambda *_: StandIn()) -> None:
        self._member = member
        self.reserved: list[str] = []
        self.members: dict[str, Any] = {}
        self.releases = 0

    def why_not(self, plan: Plan) -> str:
        return ""

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        self.reserved = [seat.name for seat in seats]

    def start(self, seat: Seat, command: Command) -> Any:
        self.members[seat.name] = member = self._member(seat, command)
        return member

    def release(self) -> None:
        self.releases += 1


def resources(plan: Plan, launcher: Any, workers: Sequence[Any] = ()) -> Resources:
    """Return the resources of a crew that gives its instances no time to end."""
    return Resources(launcher, PlanMemory.create(plan), Slices(()), 0.0, list(workers))


def running(name: str, member: Any, log: list[Any] | None = None) -> RunningInstance:
    """Return an instance that notes in `log` that its connection was closed."""
    calls = [] if log is None else log
    return RunningInstance(name, member, calls.append, lambda: calls.append(f"hang up {name}"))
