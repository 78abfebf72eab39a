"""Example of a way to average: the replicas of a plan take means through named FIFOs.

hocket train ppo --distribute sliced:slices=2,reduce=examples/own_average.py:Fifo

It works for processes that share no memory. Every replica makes a FIFO for each other replica,
which writes its arrays into it. Then each replica takes the mean of all arrays, in the same order,
so that all get the same bits. A FIFO holds only 64 KiB, so a thread empties it while others write.
"""

from __future__ import annotations

import os
import select
import shutil
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, BinaryIO

import jax
import numpy as np
from jax.experimental import io_callback

from hocket.runtime.averaging import Address, Epoch, Members, Sites, Space, Unavailable

SECONDS = 60.0
"""How long a replica waits for another."""
HEADER = struct.Struct("<qqqq")  # epoch, call site, number of the call, bytes of data
HELLO = -1
"""The call site of a greeting, which says that this replica has opened its ends."""


class Fifo:
    """The way to average. `hocket.runtime.averaging.Average` documents its methods."""

    name, preference = "fifo", 100

    def note(self, members: Members) -> str:
        return "through named FIFOs"

    def why_not(self, members: Members) -> str:
        return "it cannot make a mean take longer." if members.delay else ""

    def is_choice(self, members: Members) -> bool:
        return False  # shared memory is always faster

    def room(self, members: Members, sites: Sites) -> int:
        return 0

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> Listening:  # fmt: skip
        return Listening(len(members), index)


class Listening:
    """A replica that has a FIFO for each other one. Its address is the folder of these FIFOs."""

    def __init__(self, replicas: int, index: int) -> None:
        self.address = tempfile.mkdtemp(prefix="hocket-fifo-")
        self.index, self.others = index, [i for i in range(replicas) if i != index]
        for other in self.others:
            os.mkfifo(f"{self.address}/{other}")
        # Without `O_NONBLOCK`, opening a FIFO waits for its other end. `O_RDWR` would not wait, but
        # it also opens an end for writing, so the end of the file would never be read.
        self.ends = {i: self._open(self.address, i, os.O_RDONLY) for i in self.others}

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> Mean:
        try:
            to = {i: self._open(addresses[i], self.index, os.O_WRONLY) for i in self.others}
        except OSError as error:
            self.close()
            raise Unavailable(str(error)) from None
        mean = Mean(self.index, self.ends, to, epoch)
        try:
            mean.greet()
        except RuntimeError as error:
            mean.close()
            raise Unavailable(str(error)) from None
        finally:
            shutil.rmtree(self.address, ignore_errors=True)  # by now all have opened their ends
        return mean

    def close(self) -> None:
        for end in self.ends.values():
            os.close(end)
        shutil.rmtree(self.address, ignore_errors=True)

    @staticmethod
    def _open(folder: str, name: int, how: int) -> int:
        return os.open(f"{folder}/{name}", how | os.O_NONBLOCK)


class Mean:
    """The mean in one replica, with a FIFO from each other replica and a FIFO to it."""

    def __init__(self, index: int, ends: dict[int, int], to: dict[int, int], epoch: int) -> None:
        self._index, self._to, self._epoch = index, to, epoch
        self._sending = threading.Lock()
        self._arrived: dict[tuple[int, int, int], bytes] = {}  # keys: replica, call site, call
        self._changed = threading.Condition()
        self._gone: set[int] = set()
        """The replicas that have ended, and this one after `close`."""
        self._sites, self._calls = 0, Counter[int]()
        self._nbytes, self._waited_ns = 0, 0
        for other, end in ends.items():
            threading.Thread(target=self._empty, args=(other, end), daemon=True).start()

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        site, self._sites = self._sites, self._sites + 1
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
        return io_callback(partial(self._mean, site), specs, *xs)

    def counts(self) -> tuple[int, int, int]:
        return self._calls.total(), self._nbytes, self._waited_ns

    def check(self) -> None:
        """Do nothing: a call that fails raises by itself."""

    def close(self) -> None:
        self._leave(self._index)
        with self._sending:
            for end in self._to.values():
                os.close(end)  # the others read the end of the file, as if this process died
            self._to = {}

    def free(self) -> None:
        self.close()

    def greet(self) -> None:
        """Greet all other replicas, and wait for their greetings."""
        self._tell(HELLO, 0, b"")
        for other in self._to:
            self._hear(other, HELLO, 0)

    def _mean(self, site: int, *arrays: Any) -> list[np.ndarray]:
        xs = [np.asarray(x) for x in arrays]
        call, self._calls[site] = self._calls[site], self._calls[site] + 1
        mine = b"".join(x.tobytes() for x in xs)
        self._nbytes += len(mine)
        self._tell(site, call, mine)
        start = time.perf_counter_ns()
        heard = {other: self._hear(other, site, call) for other in self._to} | {self._index: mine}
        self._waited_ns += time.perf_counter_ns() - start
        for other, data in heard.items():
            if len(data) != len(mine):
                raise RuntimeError(
                    f"the replicas run different programs: at one `averaged`, replica "
                    f"{self._index} has {len(mine)} bytes and replica {other} has {len(data)}"
                )
        return mean_of([heard[i] for i in sorted(heard)], xs)

    def _tell(self, site: int, call: int, data: bytes) -> None:
        frame = HEADER.pack(self._epoch, site, call, len(data)) + data
        with self._sending:
            for other, end in self._to.items():
                left = memoryview(frame)
                while left:
                    left = left[self._write(other, end, left) :]

    def _write(self, other: int, end: int, data: memoryview) -> int:
        if self._index in self._gone:
            raise RuntimeError("another replica has ended, so there is no mean")
        try:
            return os.write(end, data)
        except BlockingIOError:  # full; wait at most 0.1 s, since `close` may come meanwhile
            select.select([], [end], [], 0.1)
            return 0
        except BrokenPipeError:
            raise RuntimeError(f"replica {other} has ended, so there is no mean") from None

    def _hear(self, other: int, site: int, call: int) -> bytes:
        """Wait for the data of another replica; it may have ended after sending them."""
        key, deadline = (other, site, call), time.monotonic() + SECONDS
        with self._changed:
            while key not in self._arrived:
                if self._gone & {other, self._index}:
                    raise RuntimeError("another replica has ended, so there is no mean")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise RuntimeError(f"waited {SECONDS:g} s for replica {other}")
            return self._arrived.pop(key)

    def _empty(self, other: int, end: int) -> None:
        """Read all that another replica writes, until it ends."""
        # Until the writer has opened its end, a read would find the end of the file.
        select.select([end], [], [])
        os.set_blocking(end, True)
        with open(end, "rb") as stream:
            while frame := read_frame(stream):
                (epoch, *key), data = frame
                with self._changed:
                    if epoch == self._epoch:
                        self._arrived[other, key[0], key[1]] = data
                    self._changed.notify_all()
        self._leave(other)

    def _leave(self, replica: int) -> None:
        with self._changed:
            self._gone.add(replica)
            self._changed.notify_all()


def read_frame(stream: BinaryIO) -> tuple[tuple[int, int, int], bytes] | None:
    """Read the next header and its data; return None at the end, even inside a frame."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    epoch, site, call, nbytes = HEADER.unpack(header)
    data = stream.read(nbytes)
    return ((epoch, site, call), data) if len(data) == nbytes else None


def mean_of(parts: Sequence[bytes], like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compute the means of the arrays in all parts; narrow floats are summed in float32."""
    means, start = [], 0
    for x in like:
        arrays = [np.frombuffer(part, x.dtype, x.size, start).reshape(x.shape) for part in parts]
        wide = np.result_type(x.dtype, np.float32)
        total = reduce(np.add, [array.astype(wide) for array in arrays])
        means.append((total / len(parts)).astype(x.dtype))
        start += x.nbytes
    return means
