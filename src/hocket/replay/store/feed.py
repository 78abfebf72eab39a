"""Batches of a replay table on a device. A thread draws and sends them ahead of their use.

    with feed(replay, 256) as batches:
        for batch in batches:
            params, priority = update(params, batch)
            replay.update(batch.keys, priority)

While the device computes with one batch, the next ones are drawn and sent. An accelerator reads
them from pinned memory without the help of the CPU.
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
    """Iterate for ever over samples of `num` rows, as arrays of a device. Keys stay numpy arrays.

    Up to `ahead` samples are drawn before they are needed, so they may not reflect the newest
    updates of priorities. If the table's rate limits make the thread wait for more than
    `timeout` seconds, iterating raises TimeoutError.
    """
    if ahead < 1:
        raise ValueError(f"ahead={ahead} must be at least 1.")
    return Feed(table, num, ahead, device or jax.devices()[0], seconds_of(timeout))


class Feed(Closing):
    """The iterator that `feed` returns. Only one thread may take batches from it."""

    def __init__(self, table: Access, num: int, ahead: int, device: Any, seconds: float) -> None:
        self._table, self._num, self._seconds = table, num, seconds
        kind = _Unpinned if device.platform == "cpu" else _Pinned
        # Two more than `ahead`: one that is being sent, and one that the next batch is drawn into.
        self._buffers: deque[_Buffer] = deque(kind(table, num, device) for _ in range(ahead + 2))
        self._asked: deque[tuple[_Buffer, Callable[[], Batch]]] = deque()
        self._closed = threading.Event()
        self._batches = Prefetch(self._draw, ahead)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set():
            raise ValueError("this feed was closed, so it has no more batches. Make a new one.")
        return self._batches.get()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._batches.close()

    def _draw(self) -> Batch:
        while len(self._asked) < 2:
            self._asked.append(self._ask(self._buffers.popleft()))
        buffer, draw = self._asked.popleft()
        batch = self._send(buffer, draw)
        self._buffers.append(buffer)
        return batch

    def _ask(self, buffer: _Buffer) -> tuple[_Buffer, Callable[[], Batch]]:
        buffer.wait()
        seconds = min(_LOOK, self._seconds)
        return buffer, self._table.ask(self._num, out=buffer.batch, timeout=seconds)

    def _send(self, buffer: _Buffer, draw: Callable[[], Batch]) -> Batch:
        left = self._seconds
        while True:
            try:
                return buffer.send(draw())
            except TimeoutError:
                left -= _LOOK
                if left <= 0 or self._closed.is_set():
                    raise
                draw = self._ask(buffer)[1]


_LOOK = 0.1
"""Seconds after which a thread that waits for rows checks if the feed was closed."""


class _Unpinned:
    """New memory for each batch, since a CPU device may use a numpy array without copying it."""

    batch = None

    def __init__(self, table: Access, num: int, device: Any) -> None:
        self._device = device

    def wait(self) -> None:
        pass

    def send(self, batch: Batch) -> Batch:
        arrays: Any = (batch.rows, batch.probability)
        rows, probability = jax.device_put(arrays, self._device)
        return replace(batch, rows=rows, probability=probability)


class _Pinned:
    """Pinned memory, which an accelerator reads by itself. One transfer moves a whole batch."""

    def __init__(self, table: Access, num: int, device: Any) -> None:
        columns = {c.name: ((num, *c.drawn), c.dtype) for c in table.schema.columns}
        layout = _offsets({**columns, _PROBABILITY: ((num,), np.dtype(np.float32))})
        size = max(at + math.prod(shape) * dtype.itemsize for at, shape, dtype in layout.values())
        self._device = SingleDeviceSharding(device)
        pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
        self._memory = jax.block_until_ready(jax.device_put(np.zeros(size, np.uint8), pinned))
        # JAX may narrow 64 bits to 32, which a bitcast cannot do. Such columns are sent one by one.
        narrow = {
            name: (at, shape, dtype)
            for name, (at, shape, dtype) in layout.items()
            if jax.dtypes.canonicalize_dtype(dtype) == dtype
        }
        self._wide = layout.keys() - narrow.keys()
        self._unpack = jax.jit(partial(_unpack, narrow))
        memory = _writable(self._memory)
        views = {name: memory[at : at + math.prod(shape) * dtype.itemsize].view(dtype)
                 .reshape(shape) for name, (at, shape, dtype) in layout.items()}  # fmt: skip
        probability = views.pop(_PROBABILITY)
        self.batch = Batch(views, np.empty((num, 2), np.uint32), probability, evenly=False)
        self._sent: Any = None

    def wait(self) -> None:
        """Wait until the device has read the last batch, so that the memory can be rewritten."""
        jax.block_until_ready(self._sent)

    def send(self, batch: Batch) -> Batch:
        self._sent = sent = jax.device_put(self._memory, self._device)
        rows: dict[str, Any] = self._unpack(sent)
        rows |= jax.device_put({name: batch.rows[name] for name in self._wide}, self._device)
        return Batch(rows, batch.keys.copy(), rows.pop(_PROBABILITY), batch.evenly)


_Buffer = _Unpinned | _Pinned
"""Memory that one batch is drawn into, and sent from."""
_PROBABILITY = ":probability"
"""The name under which the probabilities are sent along with the columns. It has a colon, which no
name of a column has."""
_Offsets = dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]


def _offsets(arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> _Offsets:
    """Return the offset, shape and dtype of arrays that follow each other, aligned to 64 bytes."""
    offsets, at = {}, 0
    for name, (shape, dtype) in arrays.items():
        offsets[name] = at, shape, dtype
        at += -(-math.prod(shape) * dtype.itemsize // 64) * 64
    return offsets


def _unpack(layout: _Offsets, memory: jax.Array) -> dict[str, Any]:
    """Cut the bytes of a batch on a device into its arrays."""

    def array(at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
        raw = memory[at : at + math.prod(shape) * dtype.itemsize]
        if dtype == np.bool_:
            return raw.reshape(shape) != 0
        if dtype.itemsize == 1:
            return jax.lax.bitcast_convert_type(raw, dtype).reshape(shape)
        return jax.lax.bitcast_convert_type(raw.reshape(*shape, dtype.itemsize), dtype)

    return {name: array(*about) for name, about in layout.items()}


def _writable(array: jax.Array) -> Any:
    """Return a host array's memory as writable bytes. Do not write while a computation reads it."""
    memory: Any = (ctypes.c_uint8 * array.size).from_address(array.unsafe_buffer_pointer())
    return np.frombuffer(memory, np.uint8)
