"""The inbox of an instance: it receives messages, and puts values together from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer, TransferId
from hocket.runtime.channels.joins import Assembly, assemblies
from hocket.runtime.channels.late import late_names
from hocket.runtime.channels.packing import unpack
from hocket.runtime.instance.account import Account, Wait
from hocket.runtime.instance.replicas import join_values
from hocket.runtime.instance.store import Store, Values
from hocket.runtime.instance.wiring import End
from hocket.runtime.observe.status import RECEIVING

Key: TypeAlias = tuple[TransferId, int]  # (transfer, source instance)


class InstanceInbox:
    """The receiving ends of an instance's links, and the messages received ahead of their use."""

    def __init__(self, plan: Plan, ends: Iterable[End], store: Store, account: Account) -> None:
        self._store, self._account = store, account
        self.ends: dict[Key, End] = {end.link.key[:2]: end for end in ends}
        late = late_names(plan)
        self._late = {k: late[end.link.key] for k, end in self.ends.items() if end.link.key in late}
        self.lines: dict[Key, deque[Any]] = {}
        """Queues of messages that were received ahead of their use, oldest first."""
        self.sources: dict[TransferId, Sequence[int]] = {}
        """For each transfer, the indices of the instances whose messages are received."""
        self._expected: dict[TransferId, tuple[tuple[Assembly, ...], bool]] = {}
        for transfer, mine in groupby(self.ends.values(), lambda end: end.link.transfer):
            links = [end.link for end in mine]
            # With lag=free an iteration learns from the samples of any `batch` makers. The messages
            # of all makers are alike, so prepare for the messages of the first `batch` makers.
            taken = links[: plan.free.batch] if plan.free and plan.free.is_any(transfer) else links
            self.sources[transfer.id] = [link.source for link in links]
            self.expect(
                transfer, [x.values for x in taken], packed=all(link.packed for link in links)
            )

    def expect(
        self, transfer: Transfer, messages: Sequence[Sequence[ValueId]], *, packed: bool
    ) -> None:
        """Prepare to receive a transfer. `messages` lists the values of each of its messages."""
        axes = {v: self._store.axis(v) for v in transfer.values}
        self._expected[transfer.id] = assemblies(messages, axes), packed

    def wait_for(self, transfer: Transfer) -> Wait | None:
        """Return a `Wait` for the messages that `receive` still needs, or None if it needs none."""
        away = [s for s in self.sources[transfer.id] if not self.lines.get((transfer.id, s))]
        return Wait(RECEIVING, transfer, tuple(away)) if away else None

    def receive(self, transfer: Transfer) -> Values:
        """Receive the messages of a transfer, and return the values that they make up."""
        messages = [self._next((transfer.id, source)) for source in self.sources[transfer.id]]
        (assembled, packed), store = self._expected[transfer.id], self._store
        if packed:
            arrays = unpack(messages, assembled, store.home(transfer.values[0]))
            return dict(zip(transfer.values, arrays, strict=True))
        lists = [list(message) for message in messages]
        parts = [[lists[m][k] for m, k in x.parts] for x in assembled]
        joined = join_values(parts, [x.join for x in assembled], store.devices[0])
        values = {v: store.rows(v, x) for v, x in zip(transfer.values, joined, strict=True)}
        # A value that crosses in a loop is read about once, so a program may read it on the host.
        once = bool(transfer.loops)
        store.put([v for v, x in values.items() if not store.is_here(x, once=once)], values)
        return values

    def fill(self, key: Key, count: int) -> None:
        """Receive messages of a link ahead of their use, until `count` of them are in its queue."""
        line = self.lines.setdefault(key, deque())
        while len(line) < count:
            line.append(self._take(key))

    def catch_up(self) -> None:
        """After a block, receive all late messages that are still on their links.

        Late messages are saved with the state, and a message can be saved only when it is received.
        """
        for key, messages in self._late.items():
            self.fill(key, len(messages))

    def late(self) -> dict[str, Any]:
        """Return the arrays of all messages that wait in late channels, by their saved names."""
        return {
            name: x
            for key, messages in self._late.items()
            if (line := self.lines.get(key))
            for names, message in zip(messages, line, strict=True)
            for name, x in zip(names, message, strict=True)
        }

    def load(self, late: Mapping[str, Any]) -> None:
        """Drop all messages, and take this instance's late messages from `late`, if it has them."""
        self.lines = {}
        for key, messages in self._late.items() if late else ():
            if all(name in late for names in messages for name in names):
                saved = ([late[name] for name in names] for names in messages)
                self.lines[key] = deque(map(self.ends[key].message, saved))

    def _next(self, key: Key) -> Any:
        """Return the next message of a link, from its queue if that has any."""
        if line := self.lines.get(key):
            return line.popleft()
        message = self._take(key)
        # In its first `lag` iterations, a late reader would need messages from before the run. It
        # reads the first message instead.
        if line is None and key in self._late:
            self.lines[key] = deque([message] * len(self._late[key]))
        return message

    def _take(self, key: Key) -> Any:
        end = self.ends[key]
        return self._account.crossing(end, end.receive)
