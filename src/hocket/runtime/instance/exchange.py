"""What one instance says to the others: it sends, receives, waits, is late, and keeps account."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.channels import Address
from hocket.runtime.channels.device_work import DeviceWork, is_busy
from hocket.runtime.channels.links import Link, LinkKey, late_links, late_names
from hocket.runtime.channels.routes import Incoming, Outgoing, incoming, outgoing
from hocket.runtime.instance.wiring import Receiver, Sender, Spaces, wires
from hocket.runtime.observe.status import RECEIVING, SENDING, WORKING
from hocket.runtime.observe.timeline import Span


class Wait(NamedTuple):
    """What an instance is about to wait for."""

    ready: Callable[[], bool] | None
    """Whether it is there; None where the end of a link sees to that."""
    phase: int
    transfer: Transfer
    peers: tuple[int, ...]


AGES = -1
"""Among the metrics of an instance, which go by the numbers of values."""
NO_SPACES: Spaces = {}
MAX_SPANS = 500_000
"""What a timeline keeps of one instance; those after it are counted, not kept."""


class Exchange:
    """The ends of an instance's links. What goes through them is counted in `status`, `spans`."""

    def __init__(
        self, plan: Plan, place: str, index: int, status: Any, spaces: Spaces = NO_SPACES
    ) -> None:
        self.plan, self.place, self.index = plan, place, index
        self.name = f"{place}/{index}"
        self.spans: list[Span] | None = None
        self.spans_left_out = 0
        self.status = status
        self.outgoing: dict[int, Outgoing] = outgoing(plan, place, index)
        self.incoming: dict[int, Incoming] = incoming(plan, place, index)
        self._work = DeviceWork(status)
        self.wires = list(wires(plan, place, index, spaces, self._work))
        self.senders: dict[tuple[int, int], Sender] = {}  # by transfer and target
        self.receivers: dict[tuple[int, int], Receiver] = {}  # by transfer and source
        self._early: dict[int, bool] = {}  # by transfer
        self._order = {p.name: k for k, p in enumerate(plan.places)}
        self._averaged = (0, 0, 0)
        mine = [link for link in late_links(plan) if link.end == (place, index)]
        self._late_links: list[Link] = mine
        self._late_by = {link.transfer.id: plan.channel_of(link.transfer).lag for link in mine}
        self._late: dict[tuple[int, int], deque[list[Any]]] = {}  # by transfer and source

    def disconnect(self) -> None:
        """Close all ends; those at other instances may be closed too."""
        for end in (*self.senders.values(), *self.receivers.values()):
            end.box.close()

    def listen(self) -> dict[LinkKey, Address]:
        """Get ready to receive; the address of each link from which this instance does."""
        return {w.link.key: w.listen() for w in self.wires if not w.here.sends}

    def connect(self, addresses: Mapping[LinkKey, Address], epoch: int) -> None:
        """Connect all ends, when everybody listens."""
        self._work.forget()
        self.senders.clear()
        self.receivers.clear()
        for wire in self.wires:
            transfer, source, target = wire.link.key
            address = addresses[wire.link.key]
            if wire.here.sends:
                self.senders[transfer, target] = wire.sender(address, epoch)
            else:
                self.receivers[transfer, source] = wire.receiver(address, epoch)
        ordered = {t: [] for t in self.outgoing}
        for (transfer, _), sender in self.senders.items():
            ordered[transfer].append(sender.device_ordered)
        self._early = {t: bool(found) and all(found) for t, found in ordered.items()}

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

    def may_receive(self, transfer: Transfer, sources: Sequence[int]) -> Wait | None:
        """What to wait for before a message comes; nothing, where one has come early."""
        late = self._late.get((transfer.id, sources[0]))
        return None if late else Wait(None, RECEIVING, transfer, tuple(sources))

    def sources(self, transfer: Transfer, sources: Sequence[int]) -> Sequence[int]:
        """From whom to receive, of those who send: here, from each."""
        return sources

    def wait(self, wait: Wait) -> None:
        """Until it is so: here the end of every link sees to that."""

    def send(self, transfer: Transfer, target: int, message: list[Any]) -> None:
        """Hand a message over, waiting while there is no room for it."""
        sender = self.senders[transfer.id, target]
        start, before, begun = time.perf_counter(), sender.box.waited_ns, self._work.since()
        self.show(Wait(None, SENDING, transfer, (target,)))
        sender.send(message)
        waited = 0 if is_busy(begun) else sender.box.waited_ns - before
        nbytes = self._count(transfer, message)
        self._moved(transfer.target, waited)
        if self.spans is not None:
            name = f"{self.name} -> {transfer.target}/{target} #{transfer.id}"
            self.note("wait", transfer.target, start, start + waited / 1e9)
            self.note("send", name, start, nbytes=nbytes)

    def may_be_early(self, transfer: Transfer) -> bool:
        """Whether a message may be sent while it is computed: the device keeps the order."""
        return self._early[transfer.id]

    def receive(self, transfer: Transfer, source: int) -> Any:
        """The message for this iteration. A late reader has the first one for those to come too."""
        lag, key = self._late_by.get(transfer.id), (transfer.id, source)
        if lag and self._late.get(key):
            return self._late[key].popleft()
        message = self._take(transfer, source)
        if lag and key not in self._late:
            self._late[key] = deque([message] * lag)
        return message

    def catch_up(self) -> None:
        """After a block, what is late is here and not on a link: it is part of how a run stands."""
        for link in self._late_links:
            line = self._late[link.transfer.id, link.source]
            while len(line) < self._late_by[link.transfer.id]:
                line.append(self._take(link.transfer, link.source))
        self._work.settle()

    def late(self) -> dict[str, Any]:
        """What is on its way to this instance in late channels, one message for each iteration."""
        return {
            name: x
            for link in self._late_links
            if (line := self._late.get((link.transfer.id, link.source)))
            for names, message in zip(late_names(self.plan, link), line, strict=True)
            for name, x in zip(names, message, strict=True)
        }

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew, or with what `late` of all instances had."""
        self._late = {}
        for link in self._late_links if late else ():
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
        receiver = self.receivers[transfer.id, source]
        start, before, begun = time.perf_counter(), receiver.box.waited_ns, self._work.since()
        self.show(Wait(None, RECEIVING, transfer, (source,)))
        message = receiver.receive()
        waited = 0 if is_busy(begun) else receiver.box.waited_ns - before
        self._moved(transfer.source, waited)
        if self.spans is not None:
            name = f"{transfer.source}/{source} -> {self.name} #{transfer.id}"
            self.note("wait", transfer.source, start, start + waited / 1e9)
            self.note("receive", name, start, nbytes=_nbytes(message))
        return message

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
        self.status["phase"] = WORKING


def _nbytes(message: Iterable[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in message)
