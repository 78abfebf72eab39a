"""Start each instance as a process of this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hocket.core.plan.data import Launch, Plan
from hocket.runtime.launch import Command, Fate, Seat
from hocket.system.children import Child


class Processes:
    """The launcher that starts each seat as a child of this process."""

    launch = Launch("processes", one_process=False, one_program=False, shares_memory="node")

    def why_not(self, plan: Plan) -> str:
        return "" if sys.platform == "linux" else 'it needs Linux. Use launch="threads".'

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Reserve nothing, since this machine is already here."""

    def start(self, seat: Seat, command: Command) -> ChildMember:
        return ChildMember(command.argv, command.env, command.stdin)

    def release(self) -> None:
        """Do nothing, since nothing was reserved."""


class ChildMember(Child):
    """A child process that the launcher has started."""

    def hello(self, seconds: float) -> str:
        return self.first_line(seconds)

    def poll(self) -> Fate | None:
        ended = super().poll()
        return Fate(*ended) if ended else None


LAUNCHER = Processes
