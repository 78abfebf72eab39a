"""Start each instance as a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hocket.core.plan.data import Launch, Plan
from hocket.runtime.launch import Command, Fate, Seat


class Threads:
    """The launcher that starts each seat as a thread of this process."""

    launch = Launch("threads")

    def why_not(self, plan: Plan) -> str:
        return ""

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Reserve nothing, since this process is already here."""

    def start(self, seat: Seat, command: Command) -> ThreadMember:
        assert command.work is not None, "a thread runs a function"
        thread = threading.Thread(target=command.work, name=seat.name, daemon=True)
        thread.start()
        return ThreadMember(thread)

    def release(self) -> None:
        """Do nothing, since nothing was reserved."""


class ThreadMember:
    """A thread that the launcher has started. Python cannot end it by force."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def hello(self, seconds: float) -> str:
        return self._thread.name

    def poll(self) -> Fate | None:
        return None if self._thread.is_alive() else Fate("ended")

    def kill(self, seconds: float) -> bool:
        """Wait for the thread to end, and return True if it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


LAUNCHER = Threads
