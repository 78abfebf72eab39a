"""What an instance says to the others where a channel is free: nobody waits for a version."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer
from hocket.runtime.channels.host_arrays import from_host, host_spec
from hocket.runtime.channels.links import is_sample, links, versions
from hocket.runtime.free.ledger import Board
from hocket.runtime.free.newest import Latest
from hocket.runtime.instance.exchange import AGES, NO_SPACES, Exchange, Wait
from hocket.runtime.instance.wiring import Spaces
from hocket.runtime.observe.status import RECEIVING, SENDING
from hocket.system.events import Closed

PREFIX = "sample-"

Key: TypeAlias = tuple[int, int]  # (transfer, source instance)


class FreeExchange(Exchange):
    """Of the learner, of a maker of samples, or of an instance that works for such a one."""

    def __init__(
        self, plan: Plan, place: str, index: int, status: Any, spaces: Spaces, board: Board,
        latest: Latest,
    ) -> None:  # fmt: skip
        super().__init__(plan, place, index, status, spaces)
        assert plan.free
        self.board, self._latest = board, latest
        self._learner, self._maker = plan.free.learner, plan.free.maker
        self._versions = versions(plan)
        self._samples = [t for t in plan.projection.transfers if is_sample(plan, t)]
        self._bundle: dict[Key, deque[Any]] = {}
        self._chosen: list[int] | None = None
        self._backlog: list[deque[dict[Key, list[Any]]]] = [deque() for _ in range(board.makers)]
        self.ages: list[list[int]] = []
        """Of the samples that were learned from, by iteration."""

    # An iteration.

    def turn(self) -> Wait | None:
        if self.place == self._learner:
            return None
        return Wait(self._may_begin, SENDING, self._samples[0], (0,))

    def begin(self) -> bool:
        """Whether there is another iteration."""
        self._chosen = None
        if self.place == self._maker:
            if not self.board.begin(self.index):
                return False
            version, message = self._latest.read()
            self.board.made_with(self.index, version)
            self._bundle.clear()
            self._put_by(_dealt(message, self._versions))
            return True
        return self.place == self._learner or bool(self.board.led() > self.status["iteration"])

    def end(self) -> None:
        if self.place == self._maker:
            self.board.end(self.index)
        elif self.place != self._learner:
            self.board.help(self.place, self.index)

    def ages_since(self) -> dict[int, Any]:
        ages, self.ages = self.ages, []
        found = np.array(ages, int).reshape(-1, self.board.batch)
        by_iteration = found if self.board.batch > 1 else found[:, 0]
        return {AGES: by_iteration} if self.place == self._learner else {}

    def _may_begin(self) -> bool:
        """A maker may, while there is room for its sample; who works for it, once it has begun."""
        if self.place == self._maker:
            return self.board.may_begin(self.index)
        ahead = self.board.led() > self.status["iteration"]
        return bool(ahead or self.board.numbers["stopped"][0])

    # Messages.

    def may_receive(self, transfer: Transfer, sources: Sequence[int]) -> Wait | None:
        if transfer in self._samples and self._chosen is None:
            self._publish()
            return Wait(self._may_take, RECEIVING, transfer, (0,))
        if transfer in self._samples:
            sources = self.sources(transfer, sources)
        away = [s for s in sources if not self._bundle.get((transfer.id, s))]
        return super().may_receive(transfer, away) if away else None

    def sources(self, transfer: Transfer, sources: Sequence[int]) -> Sequence[int]:
        """Of samples, the makers whose turn it is, or all who work for the only one."""
        if transfer not in self._samples:
            return sources
        if self._chosen is None:
            self._chosen = self.board.choice()
            assert self._chosen is not None
            self.ages.append([self.board.take(maker) for maker in self._chosen])
            for maker in self._chosen:
                if self._backlog[maker]:
                    self._put_by(self._backlog[maker].popleft())
        return self._chosen if transfer.source == self._maker else sources

    def may_be_early(self, transfer: Transfer) -> bool:
        return False  # what is on the board is there, for whoever takes what is ready

    def send(self, transfer: Transfer, target: int, message: list[Any]) -> None:
        if transfer not in self._versions:
            super().send(transfer, target, message)
        else:
            self._put_by({(transfer.id, 0): message})
            self._count(transfer, message)

    def receive(self, transfer: Transfer, source: int) -> Any:
        line = self._bundle.get((transfer.id, source))
        return line.popleft() if line else super().receive(transfer, source)

    def _put_by(self, messages: Mapping[Key, Any]) -> None:
        """Keep messages that are here already until somebody asks for them."""
        for key, message in messages.items():
            self._bundle.setdefault(key, deque()).append(message)

    def wait(self, wait: Wait) -> None:
        """Until it is so, or the run ends."""
        if wait.ready is None:
            return
        start = time.perf_counter()
        self.show(wait)
        while True:
            count = self.board.event.count()
            if self.board.numbers["closed"]:
                raise Closed
            if wait.ready():
                break
            self.board.event.wait(count)
        other = wait.transfer.source if wait.phase == RECEIVING else wait.transfer.target
        waited = time.perf_counter() - start
        self._moved(other, int(1e9 * waited))
        if self.spans is not None and waited > 1e-5:
            self.note("wait", other, start)

    def _may_take(self) -> bool:
        return self.board.choice() is not None

    def _publish(self) -> None:
        """What was sent in this iteration, all at once, as its version."""
        version = int(self.status["iteration"])
        self._latest.write(
            version, [x for t in self._versions for x in self._bundle[t.id, 0].popleft()]
        )
        self.board.publish(version)

    # How a run stands.

    def late(self) -> dict[str, Any]:
        """The samples that nobody has learned from yet. Only while nobody works."""
        if self.place != self._learner:
            return {}
        n, found = self.board.numbers, {}
        for maker, backlog in enumerate(self._backlog):
            while len(backlog) < n["made"][maker] - n["taken"][maker]:
                keys = message_specs(self.plan, maker)
                backlog.append({key: self.receivers[key].receive() for key in keys})
            for k, sample in enumerate(backlog):
                at = (n["taken"][maker] + k) % self.board.window
                name = f"{PREFIX}{maker}-{k}"
                next_version = int(self.status["iteration"])
                found[f"{name}-age"] = np.array(next_version - n["made_with"][maker, at])
                found |= {
                    f"{name}-{t}-{source}-{j}": x for (t, source), message in sample.items()
                    for j, x in enumerate(message)
                }  # fmt: skip
        return found

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew, with the samples of `late`; the learner writes them on the board."""
        super().load(late)
        self._bundle, self._chosen, self.ages = {}, None, []
        if self.place != self._learner:
            return
        n = self.board.numbers
        self.board.clear()
        for maker, backlog in enumerate(self._backlog):
            backlog.clear()
            while f"{(name := f'{PREFIX}{maker}-{len(backlog)}')}-age" in late:
                n["made_with"][maker, len(backlog)] = -int(late[f"{name}-age"])
                backlog.append(
                    {
                        (t, source): [
                            from_host(late[f"{name}-{t}-{source}-{j}"], x)
                            for j, x in enumerate(specs)
                        ]
                        for (t, source), specs in message_specs(self.plan, maker).items()
                    }
                )
            for field in ("loaded", "begun", "made"):
                n[field][maker] = len(backlog)


def fitting_samples(plan: Plan, late: Mapping[str, Any]) -> dict[str, Any]:
    """The saved samples that a plan can go on with: all of them, or none."""
    found = {name: x for name, x in late.items() if name.startswith(PREFIX)}
    if not (found and plan.free):
        return {}
    samples = [name.removesuffix("-age") for name in found if name.endswith("-age")]
    ages = sorted((int(found[f"{name}-age"]) for name in samples), reverse=True)
    free = plan.free
    in_time = all(k // free.batch + age <= free.max_age for k, age in enumerate(ages))
    wanted = {f"{name}-age": () for name in samples}
    for name in samples:
        maker, k = map(int, name.removeprefix(PREFIX).split("-"))
        if maker >= free.makers or k >= free.window:
            return {}
        for key, specs in message_specs(plan, maker).items():
            wanted |= {
                f"{name}-{key[0]}-{key[1]}-{j}": host_spec(x)[0] for j, x in enumerate(specs)
            }
    return found if in_time and {k: np.shape(x) for k, x in found.items()} == wanted else {}


def message_specs(plan: Plan, maker: int) -> dict[Key, tuple[Any, ...]]:
    """The messages that a sample of a maker consists of."""
    assert plan.free
    return {
        (link.transfer.id, link.source): link.arrays
        for link in links(plan)
        if is_sample(plan, link.transfer)
        and (link.transfer.source != plan.free.maker or link.source == maker)
    }


def make_exchange(
    plan: Plan, place: str, index: int, status: Any, board: Board | None, latest: Latest | None,
    spaces: Spaces = NO_SPACES,
) -> Exchange:  # fmt: skip
    """What an instance of a plan needs, be a channel free or not."""
    if board is None or latest is None:
        return Exchange(plan, place, index, status, spaces)
    return FreeExchange(plan, place, index, status, spaces, board, latest)


def _dealt(message: Any, transfers: list[Transfer]) -> dict[Key, Any]:
    """A bundle again as the messages that it was made of."""
    found, start = {}, 0
    for t in transfers:
        found[t.id, 0] = message[start : start + len(t.values)]
        start += len(t.values)
    return found
