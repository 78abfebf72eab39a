"""What one instance says to the others: it sends, receives, waits, is late, and keeps account."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.channels import Pipe
from hocket.runtime.channels.links import Link, late_links, late_names
from hocket.runtime.channels.transports.one_gpu import OnOneGpu
from hocket.runtime.observe.status import RECEIVING, SENDING, WORKING
from hocket.runtime.observe.timeline import Span


class Wait(NamedTuple):
    """What an instance is about to wait for."""

    ready: Callable[[], bool] | None
    """Whether it is there; None where a pipe sees to that."""
    phase: int
    transfer: Transfer
    peers: tuple[int, ...]


Pipes = Mapping[tuple[int, int, int], Pipe]  # (transfer, source instance, target instance)

AGES = -1
"""Among the metrics of an instance, which go by the numbers of values."""
MAX_SPANS = 500_000
"""What a timeline keeps of one instance; those after it are counted, not kept."""


class Exchange:
    """The pipes of an instance. What goes through them is written into `status` and `spans`."""

    def __init__(self, plan: Plan, place: str, index: int, pipes: Pipes, status: Any) -> None:
        self.plan, self.place, self.index = plan, place, index
        self.name = f"{place}/{index}"
        self.spans: list[Span] | None = None
        self.spans_left_out = 0
        self._pipes, self.status = pipes, status
        self._order = {p.name: k for k, p in enumerate(plan.places)}
        self._averaged = (0, 0, 0)
        self._late: dict[tuple[int, int], deque[list[Any]]] = {}  # by transfer and source

    def turn(self) -> Wait | None:
        """What the next iteration has to wait for."""
        return None

    def begin(self) -> bool:
        """Whether there is another iteration: here, always."""
        return True

    def end(self) -> None:
        """An iteration has ended."""

    def ages_since(self) -> dict[int, Any]:
        """The ages of the samples learned from since the last time, as `AGES`; here none."""
        return {}

    def may_receive(self, transfer: Transfer, sources: list[int]) -> Wait | None:
        """What to wait for before a message comes; nothing, where one has come early."""
        late = self._late.get((transfer.id, sources[0]))
        return None if late else Wait(None, RECEIVING, transfer, tuple(sources))

    def sources(self, transfer: Transfer, sources: list[int]) -> list[int]:
        """From whom to receive, of those who send: here, from each."""
        return sources

    def wait(self, wait: Wait) -> None:
        """Until it is so: here every pipe sees to that."""

    def send(self, transfer: Transfer, target: int, message: list[Any]) -> None:
        """Hand a message over, waiting while there is no room for it."""
        pipe = self._pipes[transfer.id, self.index, target]
        start, before, begun = time.perf_counter(), pipe.waited[0], self._begun()
        self.show(Wait(None, SENDING, transfer, (target,)))
        pipe.send(message)
        waited = 0 if _is_busy(begun) else pipe.waited[0] - before
        nbytes = self._count(transfer, message)
        self._moved(transfer.target, waited)
        if self.spans is not None:
            name = f"{self.name} -> {transfer.target}/{target} #{transfer.id}"
            self.note("wait", transfer.target, start, start + waited / 1e9)
            self.note("send", name, start, nbytes=nbytes)

    def may_be_early(self, transfer: Transfer) -> bool:
        """Whether a message may be sent while it is computed: the device keeps the order."""
        pipes = [p for (t, s, _), p in self._pipes.items() if (t, s) == (transfer.id, self.index)]
        return bool(pipes) and all(isinstance(pipe, OnOneGpu) for pipe in pipes)

    def settle(self) -> None:
        """Until the device has done what this instance has begun: that is work, and no waiting."""
        phase = int(self.status["phase"])
        self.status["phase"] = WORKING
        for pipe in self._direct():
            pipe.settle()
        self.status["phase"] = phase

    def receive(self, transfer: Transfer, source: int) -> Any:
        """The message for this iteration. A late reader has the first one for those to come too."""
        lag, key = self.plan.channel_of(transfer).late, (transfer.id, source)
        if lag and self._late.get(key):
            return self._late[key].popleft()
        message = self._take(transfer, source)
        if lag and key not in self._late:
            self._late[key] = deque([message] * lag)
        return message

    def catch_up(self) -> None:
        """After a block, what is late is here and not in a pipe: it is part of how a run stands."""
        for link in self._late_links():
            line = self._late[link.transfer.id, link.source]
            while len(line) < self.plan.channel_of(link.transfer).late:
                line.append(self._take(link.transfer, link.source))
        self.settle()

    def late(self) -> dict[str, Any]:
        """What is on its way to this instance in late channels, one message for each iteration."""
        return {
            name: x
            for link in self._late_links()
            if (line := self._late.get((link.transfer.id, link.source)))
            for names, message in zip(late_names(self.plan, link), line, strict=True)
            for name, x in zip(names, message, strict=True)
        }

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew, or with what `late` of all instances had."""
        self._late = {}
        for link in self._late_links() if late else ():
            line = deque([late[name] for name in names] for names in late_names(self.plan, link))
            self._late[link.transfer.id, link.source] = line

    def count_averages(self, average: Reduction | None, start: float) -> None:
        """What this replica has sent and waited for inside its programs since the last look."""
        if average is None:
            return
        before, self._averaged = self._averaged, average.counts()
        calls, nbytes, waited = (b - a for a, b in zip(before, self._averaged, strict=True))
        self.status["messages"] += calls
        self.status["sent"] += nbytes
        self.status["waited"][self._order[self.place]] += waited
        if self.spans is not None and calls:
            self.note("wait", self.place, start, start + waited / 1e9, nbytes)

    def note(
        self, kind: str, name: str, start: float, end: float | None = None, nbytes: int = 0
    ) -> None:
        """Keep a span, to its end or until now."""
        assert self.spans is not None
        if len(self.spans) >= MAX_SPANS:
            self.spans_left_out += 1
            return
        end, iteration = time.perf_counter() if end is None else end, int(self.status["iteration"])
        self.spans.append(Span(self.name, kind, name, start, end, nbytes, iteration))

    def _take(self, transfer: Transfer, source: int) -> Any:
        pipe = self._pipes[transfer.id, source, self.index]
        start, before, begun = time.perf_counter(), pipe.waited[1], self._begun()
        self.show(Wait(None, RECEIVING, transfer, (source,)))
        message = pipe.receive()
        waited = 0 if _is_busy(begun) else pipe.waited[1] - before
        self._moved(transfer.source, waited)
        if self.spans is not None:
            name = f"{transfer.source}/{source} -> {self.name} #{transfer.id}"
            self.note("wait", transfer.source, start, start + waited / 1e9)
            self.note("receive", name, start, nbytes=_nbytes(message))
        return message

    def _direct(self) -> list[OnOneGpu]:
        return [pipe for pipe in self._pipes.values() if isinstance(pipe, OnOneGpu)]

    def _begun(self) -> list[Any]:
        """The last of what it has begun on a GPU, whose pipes tell it from now on how they fare."""
        direct = self._direct()
        for pipe in direct:
            pipe.meanwhile, pipe.begins = self.settle, self._work
        return [pipe.last for pipe in direct if pipe.last is not None]

    def _late_links(self) -> list[Link]:
        return [link for link in late_links(self.plan) if link.end == (self.place, self.index)]

    def _count(self, transfer: Transfer, message: list[Any]) -> int:
        nbytes = _nbytes(message)
        self.status["sent"] += nbytes
        self.status["messages"] += 1
        self.status["crossed"][transfer.id] += nbytes
        return nbytes

    def show(self, wait: Wait) -> None:
        """Let others see what this instance waits for."""
        self.status["transfer"], self.status["peer"] = wait.transfer.id, wait.peers[0]
        self.status["phase"] = wait.phase

    def _moved(self, place: str, nanoseconds: int) -> None:
        self.status["waited"][self._order[place]] += nanoseconds
        self.status["moves"] += 1
        self._work()

    def _work(self) -> None:
        self.status["phase"] = WORKING


def _is_busy(begun: Iterable[Any]) -> bool:
    """Whether the device has worked all the while that its host waited."""
    return any(not x.is_ready() for x in begun)


def _nbytes(message: Iterable[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in message)
