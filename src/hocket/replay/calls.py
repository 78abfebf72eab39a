"""The host functions with which a program uses a replay kept by a service.

With one shard and no batches drawn ahead, they give the same rows as the functions in `device`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np

from hocket.core.program.host import LiveFunction, Specs
from hocket.core.program.service import At
from hocket.replay.device import HIGHEST
from hocket.replay.service import LiveReplay, ReplayService, stores
from hocket.replay.store.access import Access, Batch
from hocket.replay.store.prefetch import Prefetch
from hocket.replay.store.shards import Shards


@dataclass(frozen=True)
class _Function:
    service: ReplayService
    keeps_state = True
    changes = False

    def __repr__(self) -> str:
        options = "".join(
            f" {x.name}={getattr(self, x.name)}" for x in fields(self) if x.name != "service"
        )
        return f"{self.name} of {self.service.capacity} rows {self.service.schema}{options}"

    @property
    def name(self) -> str:
        return f"{type(self).__name__.lower()} of the {self.service.name}"

    def open(self, *, watched: bool = False, at: At | None = None) -> LiveFunction:
        assert at is not None  # the caller has started the service
        return _LIVE[type(self)](self, at)


@dataclass(frozen=True, repr=False)
class Insert(_Function):
    """The host function that stores rows, but only those for which `real` is true.

    Its signature is `(ticket, real, [priority,] columns...) -> (ticket,)`. The ticket counts the
    changes of the replay so far. Every column begins with the axes of `real`.
    """

    rated: bool
    changes = True

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        return arrays[:1]


@dataclass(frozen=True, repr=False)
class Sample(_Function):
    """The host function that draws rows, one for each number in `uniforms`.

    Its signature is `(ticket, uniforms) -> (keys, probability, ready, columns...)`. The ticket
    counts the changes of the replay so far.
    """

    minimum: int

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        (num,) = arrays[1].shape
        spec = jax.ShapeDtypeStruct
        columns = [spec((num, *c.shape), c.dtype) for c in self.service.schema.columns]
        return [spec((num, 2), np.uint32), spec((num,), np.float32), spec((), np.bool_), *columns]


@dataclass(frozen=True, repr=False)
class Reprioritize(_Function):
    """The host function that gives rows new priorities.

    Its signature is `(ticket, keys, priority) -> (ticket, stale_keys, bad_priorities)`. The ticket
    counts the changes of the replay so far.
    """

    changes = True

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        count = jax.ShapeDtypeStruct((), np.int32)
        return [arrays[0], count, count]


class _Calls(LiveFunction):
    """A host function, ready for calls. `start` does all the work, `finish` returns the results."""

    def __init__(self, of: _Function, at: At) -> None:
        self._of, self._at = of, at
        self._results: list[np.ndarray] = []
        with self._named():
            self._shards = stores(at)
        # Rows are inserted into one of the shards, but drawn and looked up by key in all of them.
        several, capacity = len(self._shards) > 1, of.service.capacity
        self._store = Shards(self._shards, capacity) if several else self._shards[0]

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        self._check_order(int(arrays[0]))
        with self._named():
            self._results = self._call(*arrays)

    def finish(self) -> list[np.ndarray]:
        return self._results

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Inside this context, every error names the service."""
        try:
            yield
        except Exception as error:
            name = self._of.service.name
            raise RuntimeError(f"the service that keeps the {name} failed: {error}") from error

    def _check_order(self, ticket: int) -> None:
        """Refuse a call out of order: XLA may reorder calls that do not depend on each other."""
        service = self._at.service
        if not (self._at.in_order and isinstance(service, LiveReplay)):
            return
        if ticket != service.changes % 2**32:
            raise RuntimeError(
                f"{self._of.name} was given version {ticket} of the {self._of.service.name}, but "
                f"the newest is {service.changes}. Always use the replay that the last "
                f"`insert` or `reprioritize` returned. An `insert` that must "
                f"come after a `sample` needs rows that are computed from that sample."
            )
        service.changes += self._of.changes

    def close(self) -> None:
        if not isinstance(self._at.service, Sequence) and self._at.how.carrier == "near":
            return  # these are the service's own tables, not connections to them
        for shard in self._shards:
            shard.close()

    def _call(self, *arrays: np.ndarray) -> list[np.ndarray]:
        raise NotImplementedError


class _Inserting(_Calls):
    _of: Insert

    def _call(self, *arrays: np.ndarray) -> list[np.ndarray]:
        ticket, real, *rest = arrays
        keep, lead = np.flatnonzero(real), real.ndim
        if len(keep):
            flat = [x.reshape(-1, *x.shape[lead:])[keep] for x in rest]
            shard = self._shards[self._at.member % len(self._shards)]
            priority = _fit(flat.pop(0), shard) if self._of.rated else None
            names = [c.name for c in self._of.service.schema.columns]
            shard.insert(dict(zip(names, flat, strict=True)), priority)
        return [_next(ticket)]


class _Sampling(_Calls):
    _of: Sample

    def __init__(self, of: Sample, at: At) -> None:
        super().__init__(of, at)
        self._ready = False
        self._ahead: dict[int, Prefetch[Batch]] = {}

    def _call(self, *arrays: np.ndarray) -> list[np.ndarray]:
        _, uniforms = arrays
        num, columns = len(uniforms), self._of.service.schema.columns
        size = 1 if self._ready else self._store.info()["size"]
        self._ready = self._ready or size >= max(self._of.minimum, 1)
        if not size:  # as from an empty device replay: zeros, with probability 1
            rows = {c.name: np.zeros((num, *c.shape), c.dtype) for c in columns}
            batch = Batch(rows, np.zeros((num, 2), np.uint32), np.ones(num, np.float32), True)
        else:
            batch = self._draw(num, uniforms)
        # Before `ready`, keys have generation 0, so `reprioritize` ignores them.
        keys = batch.keys if self._ready else batch.keys * np.array([1, 0], np.uint32)
        rows = [batch.rows[c.name] for c in columns]
        return [keys, batch.probability, np.array(self._ready), *rows]

    def _draw(self, num: int, uniforms: np.ndarray) -> Batch:
        if not (self._ready and self._at.how.prefetch):
            return self._store.sample(num, uniforms=uniforms)
        if num not in self._ahead:
            self._ahead[num] = Prefetch(lambda: self._store.sample(num), self._at.how.prefetch)
        return self._ahead[num].get()

    def close(self) -> None:
        for ahead in self._ahead.values():
            ahead.close()
        super().close()


class _Reprioritizing(_Calls):
    _of: Reprioritize

    def _call(self, *arrays: np.ndarray) -> list[np.ndarray]:
        ticket, keys, priority = arrays
        real = keys[:, 1] != 0
        stale = bad = 0
        if real.any():
            keys, priority = keys[real], priority[real]
            wrong = _wrong(priority)
            if wrong.any():  # replace unusable priorities by the highest one so far
                highest = self._store.info()["highest"]
                priority = np.where(wrong, np.float32(highest), priority)
                bad = wrong.sum() - self._store.update(keys[wrong], priority[wrong])
            stale = self._store.update(keys, priority)
        return [_next(ticket), np.array(stale, np.int32), np.array(bad, np.int32)]


_LIVE: dict[type[_Function], Callable[[Any, At], _Calls]] = {
    Insert: _Inserting, Sample: _Sampling, Reprioritize: _Reprioritizing,
}  # fmt: skip


def _next(ticket: np.ndarray) -> np.ndarray:
    return np.asarray(ticket + np.uint32(1))


def _wrong(priority: np.ndarray) -> np.ndarray:
    return ~((priority >= 0.0) & (priority <= HIGHEST))


def _fit(priority: np.ndarray, shard: Access) -> np.ndarray:
    """Return priorities of new rows, with each invalid one replaced by the highest so far."""
    wrong = _wrong(priority)
    if not wrong.any():
        return priority
    highest = max(shard.info()["highest"], priority[~wrong].max(initial=-math.inf))
    return np.where(wrong, np.float32(highest), priority)
