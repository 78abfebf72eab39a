"""Batches of a replay table on a device, drawn and sent ahead by a thread.

    with feed(replay, 256) as batches:
        for batch in batches:
            params, priority = update(params, batch)
            replay.update(batch.keys, priority)

The next batches are drawn and travel while the device computes with this one. An accelerator reads
them from pinned memory, by itself.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from hocket.replay.store.access import Access, Batch, Closing, seconds_of
from hocket.replay.store.prefetch import Prefetch


def feed(
    table: Access,
    num: int,
    *,
    ahead: int = 2,
    device: Any = None,
    timeout: float | None = None,
) -> Feed:
    """Samples of `num` rows without end, as arrays of a device; `ahead` are ready or on their way.

    They were drawn before the newest updates of priorities. `timeout` is how long the thread waits
    for the table's limits, then iterating raises TimeoutError. Keys stay arrays of numpy.
    """
    if ahead < 1:
        raise ValueError(f"ahead={ahead}: at least one batch is drawn ahead.")
    return Feed(table, num, ahead, device or jax.devices()[0], seconds_of(timeout))


class Feed(Closing):
    """See `feed`. One thread may take batches."""

    def __init__(self, table: Access, num: int, ahead: int, device: Any, seconds: float) -> None:
        self._table, self._num, self._seconds = table, num, seconds
        room = _Unpinned if device.platform == "cpu" else _Pinned
        # While one is written, the next is drawn.
        self._rooms: deque[_Room] = deque(room(table, num, device) for _ in range(ahead + 2))
        self._asked: deque[tuple[_Room, Callable[[], Batch]]] = deque()
        self._closed = threading.Event()
        self._batches = Prefetch(self._draw, ahead)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set():
            raise ValueError("this feed was closed.")
        return self._batches.get()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._batches.close()

    def _draw(self) -> Batch:
        while len(self._asked) < 2:
            self._asked.append(self._ask(self._rooms.popleft()))
        room, drawn = self._asked.popleft()
        sent = self._sent(room, drawn)
        self._rooms.append(room)
        return sent

    def _ask(self, room: _Room) -> tuple[_Room, Callable[[], Batch]]:
        room.wait()
        return room, self._table.ask(self._num, out=room.batch, timeout=min(_LOOK, self._seconds))

    def _sent(self, room: _Room, drawn: Callable[[], Batch]) -> Batch:
        left = self._seconds
        while True:
            try:
                return room.send(drawn())
            except TimeoutError:
                left -= _LOOK
                if left <= 0 or self._closed.is_set():
                    raise
                drawn = self._ask(room)[1]


_LOOK = 0.1
"""Seconds after which a thread that waits for rows looks whether the feed was closed."""


class _Unpinned:
    """Memory for a CPU device, which may go on using what it is given: each time another."""

    batch = None

    def __init__(self, table: Access, num: int, device: Any) -> None:
        self._device = device

    def wait(self) -> None:
        pass

    def send(self, batch: Batch) -> Batch:
        sent: Any = jax.device_put((batch.rows, batch.probability), self._device)
        rows, probability = sent
        return replace(batch, rows=rows, probability=probability)


class _Pinned:
    """Memory from which an accelerator reads by itself; all columns together, so at once."""

    def __init__(self, table: Access, num: int, device: Any) -> None:
        columns = {c.name: ((num, *c.drawn), c.dtype) for c in table.schema.columns}
        layout = _offsets({**columns, _PROBABILITY: ((num,), np.dtype(np.float32))})
        size = max(where + math.prod(shape) * dtype.itemsize for where, shape, dtype in
                   layout.values())  # fmt: skip
        self._device = SingleDeviceSharding(device)
        pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
        self._memory = jax.block_until_ready(jax.device_put(np.zeros(size, np.uint8), pinned))
        narrow = {name: about for name, about in layout.items() if _is_kept(about[2])}
        self._wide = layout.keys() - narrow.keys()
        self._unpack = jax.jit(partial(_unpack, narrow))
        memory = _writable(self._memory)
        views = {name: memory[where : where + math.prod(shape) * dtype.itemsize].view(dtype)
                 .reshape(shape) for name, (where, shape, dtype) in layout.items()}  # fmt: skip
        probability = views.pop(_PROBABILITY)
        self.batch = Batch(views, np.empty((num, 2), np.uint32), probability, evenly=False)
        self._sent: Any = None

    def wait(self) -> None:
        """Until what was sent last has left."""
        jax.block_until_ready(self._sent)

    def send(self, batch: Batch) -> Batch:
        self._sent = sent = jax.device_put(self._memory, self._device)
        rows: dict[str, Any] = self._unpack(sent)
        rows |= jax.device_put({name: batch.rows[name] for name in self._wide}, self._device)
        return Batch(rows, batch.keys.copy(), rows.pop(_PROBABILITY), batch.evenly)


_Room = _Unpinned | _Pinned
"""Where one batch is written, to be sent."""
_PROBABILITY = ":probability"
"""No column is called so."""
_Offsets = dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]


def _offsets(arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> _Offsets:
    """Where each array begins."""
    offsets, where = {}, 0
    for name, (shape, dtype) in arrays.items():
        offsets[name] = where, shape, dtype
        where += -(-math.prod(shape) * dtype.itemsize // 64) * 64
    return offsets


def _is_kept(dtype: np.dtype[Any]) -> bool:
    """Whether it stays what it is on a device: numbers of 64 bits may become such of 32."""
    return jax.dtypes.canonicalize_dtype(dtype) == dtype


def _unpack(layout: _Offsets, memory: jax.Array) -> dict[str, Any]:
    """The arrays of a batch."""

    def array(where: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        raw = memory[where : where + math.prod(shape) * dtype.itemsize]
        if dtype == np.bool_:
            return raw.reshape(shape) != 0
        if dtype.itemsize == 1:
            return jax.lax.bitcast_convert_type(raw, dtype).reshape(shape)
        return jax.lax.bitcast_convert_type(raw.reshape(*shape, dtype.itemsize), dtype)

    return {name: array(*about) for name, about in layout.items()}


def _writable(array: jax.Array) -> Any:
    """The memory of an array that is on the host. Whoever writes there knows who reads it."""
    memory: Any = (ctypes.c_uint8 * array.size).from_address(array.unsafe_buffer_pointer())
    return np.frombuffer(memory, np.uint8)
