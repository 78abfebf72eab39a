"""The account of an instance: its work and its waits, as numbers and as spans of a timeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.channels.device_work import DeviceWork, is_busy
from hocket.runtime.instance.wiring import End
from hocket.runtime.observe.status import IDLE, RECEIVING, SENDING, WORKING
from hocket.runtime.observe.timeline import Span

T = TypeVar("T")

MAX_SPANS = 500_000
"""The most spans that an instance keeps for its timeline. Further spans are only counted."""


class Wait(NamedTuple):
    """A condition to wait for: messages from the replicas `peers`, or room to send to them."""

    phase: int
    transfer: Transfer
    peers: tuple[int, ...]
    ready: Callable[[], bool] | None = None
    """A function that returns True when the wait is over. If None, the inbox itself waits."""
    until: Callable[[Callable[[], bool]], None] | None = None
    """A function that waits until `ready` returns True."""


class Account:
    """The status of an instance, its recorded spans, and the work it has begun on its device.

    A span is an interval in which the instance did one thing, such as a computation or a wait.
    """

    def __init__(
        self, plan: Plan, place: str, index: int, status: Any, average: Reduction | None = None
    ) -> None:
        self.name, self.status = f"{place}/{index}", status
        self.spans: list[Span] | None = None
        self.spans_left_out = 0
        self.work = DeviceWork(status)
        self._place, self._average = place, average
        self._order = {p.name: k for k, p in enumerate(plan.places)}
        self._averaged = (0, 0, 0)
        self._since = 0

    def begin(self) -> None:
        """Count the time from now on as work."""
        self._since = time.perf_counter_ns()
        self.status["phase"] = WORKING

    def end(self) -> None:
        self.status["phase"] = IDLE
        self.count_time()

    def count_time(self) -> None:
        since, self._since = self._since, time.perf_counter_ns()
        self.status["working"] += self._since - since

    def show(self, phase: int, transfer: Transfer, peer: int) -> None:
        """Show in the status that this instance waits for replica `peer`, and in which transfer."""
        self.status["transfer"], self.status["peer"] = transfer.id, peer
        self.status["phase"] = phase

    def wait(self, wait: Wait) -> None:
        """Wait until `wait.ready()`, and count the time. Do nothing if `wait.ready` is None."""
        if not (wait.ready and wait.until):
            return
        start = time.perf_counter()
        self.show(wait.phase, wait.transfer, wait.peers[0])
        wait.until(wait.ready)
        other = wait.transfer.source if wait.phase == RECEIVING else wait.transfer.target
        waited = time.perf_counter() - start
        self._moved(other, int(1e9 * waited))
        if waited > 1e-5:
            self.note("wait", other, start)

    def crossing(self, end: End, move: Callable[[], T]) -> T:
        """Call `move`, which sends or receives through `end`. Count how long `end` waits."""
        box, (other, peer), begun = end.box, end.away, self.work.since()
        start, before = time.perf_counter(), box.waited_ns
        self.show(SENDING if end.sends else RECEIVING, end.link.transfer, peer)
        message = move()
        # If the instance's own device is still at work, waiting for the other place cost no time.
        waited = 0 if is_busy(begun) else box.waited_ns - before
        self._moved(other, waited)
        if end.sends:
            self.sent(end.link.transfer, end.nbytes)
        if self.spans is not None:
            self.note("wait", other, start, start + waited / 1e9)
            kind, name = "send" if end.sends else "receive", end.link.name
            self.note(kind, f"{name} #{end.link.transfer.id}", start, nbytes=end.nbytes)
        return message

    def sent(self, transfer: Transfer, nbytes: int) -> None:
        """Count a message that was sent."""
        self.status["sent"] += nbytes
        self.status["messages"] += 1
        self.status["crossed"][transfer.id] += nbytes

    def count_averages(self, start: float) -> None:
        """Count the bytes and waits of averaging since this method was last called."""
        if self._average is None:
            return
        before, self._averaged = self._averaged, self._average.counts()
        calls, nbytes, waited = (b - a for a, b in zip(before, self._averaged, strict=True))
        self.status["messages"] += calls
        self.status["sent"] += nbytes
        self.status["waited"][self._order[self._place]] += waited
        if calls:
            self.note("wait", self._place, start, start + waited / 1e9, nbytes)

    def note(
        self, kind: str, name: str, start: float, end: float | None = None, nbytes: int = 0
    ) -> None:
        """Record a span, which ends now unless `end` is given. Do nothing if `spans` is None."""
        if self.spans is None:
            return
        if len(self.spans) >= MAX_SPANS:
            self.spans_left_out += 1
            return
        end, iteration = time.perf_counter() if end is None else end, int(self.status["iteration"])
        self.spans.append(Span(self.name, kind, name, start, end, nbytes, iteration))

    def _moved(self, place: str, nanoseconds: int) -> None:
        self.status["waited"][self._order[place]] += nanoseconds
        self.status["moves"] += 1
        self.status["phase"] = WORKING
