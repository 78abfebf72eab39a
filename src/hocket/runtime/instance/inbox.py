"""Everything that one instance receives: messages that come now, and those that came before."""

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
    """The ends of links that an instance receives from, and lines of messages that are here."""

    def __init__(self, plan: Plan, ends: Iterable[End], store: Store, account: Account) -> None:
        self._store, self._account = store, account
        self.ends: dict[Key, End] = {end.link.key[:2]: end for end in ends}
        late = late_names(plan)
        self._late = {k: late[end.link.key] for k, end in self.ends.items() if end.link.key in late}
        self.lines: dict[Key, deque[Any]] = {}
        """Messages that are here already: they come before those on a link."""
        self.sources: dict[TransferId, Sequence[int]] = {}
        """From whom a message is taken, by transfer."""
        self._ways: dict[TransferId, tuple[Assembly, ...]] = {}
        self._packed: set[TransferId] = set()
        for transfer, mine in groupby(self.ends.values(), lambda end: end.link.transfer):
            links = [end.link for end in mine]
            # Of those who make samples any few are taken, whose messages are all alike.
            taken = links[: plan.free.batch] if plan.free and plan.free.is_any(transfer) else links
            self.sources[transfer.id] = [link.source for link in links]
            self.expect(
                transfer, [x.values for x in taken], packed=all(link.packed for link in links)
            )

    def expect(
        self, transfer: Transfer, messages: Sequence[Sequence[ValueId]], *, packed: bool
    ) -> None:
        """Work out how a transfer's values are made of messages that have these values."""
        axes = {v: self._store.axis(v) for v in transfer.values}
        self._ways[transfer.id] = assemblies(messages, axes)
        if packed:
            self._packed.add(transfer.id)

    def wait_for(self, transfer: Transfer) -> Wait | None:
        """What to wait for before `receive`; None where all messages are here."""
        away = [s for s in self.sources[transfer.id] if not self.lines.get((transfer.id, s))]
        return Wait(RECEIVING, transfer, tuple(away)) if away else None

    def receive(self, transfer: Transfer) -> Values:
        """The values of a transfer for this iteration, each made of what its sources have sent."""
        messages = [self._next((transfer.id, source)) for source in self.sources[transfer.id]]
        ways, store = self._ways[transfer.id], self._store
        if transfer.id in self._packed:
            arrays = unpack(messages, ways, store.home(transfer.values[0]))
            return dict(zip(transfer.values, arrays, strict=True))
        lists = [list(message) for message in messages]
        parts = [[lists[m][k] for m, k in way.parts] for way in ways]
        joined = join_values(parts, [way.join for way in ways], store.devices[0])
        values = {v: store.rows(v, x) for v, x in zip(transfer.values, joined, strict=True)}
        # What crosses in a loop is read about once.
        once = bool(transfer.loops)
        store.put([v for v, x in values.items() if not store.is_here(x, once=once)], values)
        return values

    def fill(self, key: Key, count: int) -> None:
        """Take messages off their link until so many are here."""
        line = self.lines.setdefault(key, deque())
        while len(line) < count:
            line.append(self._take(key))

    def catch_up(self) -> None:
        """After a block, what is late is here and not on a link: it is part of how a run stands."""
        for key, messages in self._late.items():
            self.fill(key, len(messages))

    def late(self) -> dict[str, Any]:
        """What is on its way to this instance in late channels, one message for each iteration."""
        return {
            name: x
            for key, messages in self._late.items()
            if (line := self.lines.get(key))
            for names, message in zip(messages, line, strict=True)
            for name, x in zip(names, message, strict=True)
        }

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew, or with what `late` of all instances had."""
        self.lines = {}
        for key, messages in self._late.items() if late else ():
            if all(name in late for names in messages for name in names):
                saved = ([late[name] for name in names] for names in messages)
                self.lines[key] = deque(map(self.ends[key].message, saved))

    def _next(self, key: Key) -> Any:
        """The next message. A late reader has the first one for those to come too."""
        if line := self.lines.get(key):
            return line.popleft()
        message = self._take(key)
        if line is None and key in self._late:
            self.lines[key] = deque([message] * len(self._late[key]))
        return message

    def _take(self, key: Key) -> Any:
        end = self.ends[key]
        return self._account.crossing(end, end.receive)
