"""The two sides of a link under test, which carry out commands and raise if something is wrong."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hocket.cluster.devices import find_devices
from hocket.core.graph.trace import ValueId
from hocket.core.plan.device_id import device_ids
from hocket.core.projection.instructions import Transfer, TransferId
from hocket.errors import ContractError
from hocket.runtime.channels import Ends, Here, Transport
from hocket.runtime.channels.choice import TRANSPORTS
from hocket.runtime.channels.host_arrays import from_host, to_host
from hocket.runtime.channels.links import Link
from hocket.runtime.channels.packing import packing
from hocket.system.events import Closed, ThreadEvent
from hocket.system.messages import MessageSocket
from hocket.system.network import get_network, set_network
from hocket.system.shared_memory import MemoryFile, Space, pages

SECONDS = 30.0
"""The seconds after which a call that has not returned counts as stuck."""
SLOTS = 3
_DTYPES = ("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64")


class MessageKind(NamedTuple):
    """A link to test. It leads from the first side to the second, or the other way if `back`."""

    link: Link
    back: bool = False
    packed: tuple[bool, bool] = (False, False)
    """For the sender and for the receiver: True if that side joins small arrays into a block."""


@functools.cache
def kinds() -> list[MessageKind]:
    """Return the links to test. Tests refer to them by their index in this list."""
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    every = [jax.ShapeDtypeStruct((3, 5), dtype) for dtype in _DTYPES]
    every += [jax.ShapeDtypeStruct((), "float32"), jax.ShapeDtypeStruct((0, 4), "int32"), key]
    large = (jax.ShapeDtypeStruct((8, 1 << 18), "float32"),)  # 8 MiB
    small, many = _link(tuple(every), 1), _link(large, SLOTS)
    return [
        MessageKind(many),
        MessageKind(many, back=True),
        MessageKind(small),
        MessageKind(small, packed=(True, True)),
        MessageKind(small, packed=(False, True)),
        MessageKind(small, back=True, packed=(True, False)),
        MessageKind(_link((), 1)),
    ]


def _link(arrays: tuple[jax.ShapeDtypeStruct, ...], slots: int) -> Link:
    values = tuple(map(ValueId, range(len(arrays))))
    return Link(Transfer(TransferId(0), "one", "other", values, 1), 0, 0, values, arrays, slots)


class Side:
    """One of the two sides. Its public methods are commands for the link `kinds()[number]`."""

    def __init__(
        self, transport: Transport, devices: tuple[Any, ...], spaces: Mapping[int, Space]
    ) -> None:
        self._transport, self._devices, self._spaces = transport, devices, spaces
        self._ends: dict[int, Any] = {}
        self._events: dict[int, ThreadEvent] = {}
        self._kinds = kinds()
        self._links: dict[int, Link] = {}

    def listen(self, number: int) -> Any:
        return self._transport.listen(self._end(number, sends=False), self._here(number, False))

    def connect(self, number: int, address: Any, epoch: int, sends: bool) -> None:
        link = self._links[number] = self._end(number, sends=sends)
        here = self._here(number, sends)
        self._ends[number] = self._transport.connect(link, address, here, epoch)

    def send(self, number: int, first: int, count: int) -> None:
        for k in range(first, first + count):
            self._ends[number].send(self._message(number, k))

    def receive(self, number: int, first: int, count: int) -> None:
        # Compare only after the last message, because no message may change an earlier one.
        messages = [list(self._ends[number].receive()) for _ in range(count)]
        for k, arrays in enumerate(messages, first):
            self._compare(number, k, arrays)

    def wait_ready(self, number: int) -> bool:
        deadline = time.monotonic() + SECONDS / 2
        while not (ready := self._ends[number].ready()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return ready

    def ready(self, number: int) -> bool:
        return self._ends[number].ready()

    def counts(self, number: int, name: str) -> tuple[int, int]:
        return getattr(self._ends[number], name), self._ends[number].waited_ns

    def wake(self, number: int) -> None:
        """Create an event. From now on, every message that arrives signals it."""
        self._events[number] = ThreadEvent()
        self._ends[number].wake(self._events[number])

    def event(self, number: int) -> bool:
        """Return True if the event that `wake` made is signalled within half of `SECONDS`."""
        event, deadline = self._events[number], time.monotonic() + SECONDS / 2
        while not (count := event.count()) and time.monotonic() < deadline:
            event.wait(count)
        return bool(count)

    def until_closed(self, number: int, what: str) -> str:
        try:
            while True:
                getattr(self._ends[number], what)(*([self._message(number, 0)] * (what == "send")))
        except Closed:
            return "Closed"

    def close(self, number: int) -> None:
        self._ends[number].settle()
        self._ends[number].close()

    def _here(self, number: int, sends: bool) -> Here:
        homes = [jax.sharding.SingleDeviceSharding(self._devices[0])]
        count = len(self._kinds[number].link.arrays)
        return Here(sends, self._devices, tuple(homes * count), self._spaces.get(number))

    def _end(self, number: int, *, sends: bool) -> Link:
        kind = self._kinds[number]
        packed = kind.packed[0 if sends else 1] and not self._transport.on_devices
        return replace(kind.link, packed=packed)

    def _message(self, number: int, seed: int) -> list[Any]:
        link = self._links[number]
        plain = replace(link, packed=False)
        buffer = bytearray(link.message_nbytes)
        for view, x in zip(plain.views(buffer), _arrays(plain, seed), strict=True):
            view[...] = x
        if not self._transport.on_devices:
            return link.views(buffer)
        views = zip(plain.views(buffer), _order(link), strict=True)
        arrays = {k: jnp.asarray(from_host(np.array(x), link.arrays[k])) for x, k in views}
        return [jax.device_put(arrays[k], self._devices[0]) for k in sorted(arrays)]

    def _compare(self, number: int, seed: int, arrays: list[Any]) -> None:
        link = self._links[number]
        if self._transport.on_devices:
            arrays = [to_host(arrays[k]) for k in _order(link)]
        arrived = [(x.shape, np.dtype(x.dtype)) for x in arrays]
        if arrived != (wanted := [(s, np.dtype(d)) for s, d in link.specs]):
            raise ContractError(f"a message arrived as {arrived}, but its link carries {wanted}.")
        buffer, plain = bytearray(link.message_nbytes), replace(link, packed=False)
        for view, x in zip(link.views(buffer), arrays, strict=True):
            view[...] = x
        for view, x in zip(plain.views(buffer), _arrays(plain, seed), strict=True):
            if view.tobytes() != x.tobytes():
                raise ContractError(
                    f"message {seed} arrived with wrong numbers in its {x.dtype}{list(x.shape)}: "
                    f"messages must stay in order, and nothing may change one that was received."
                )


def _order(link: Link) -> list[int]:
    """Return the indices of a link's arrays in message order: small arrays first, then large."""
    return [*packing(link.arrays).small, *packing(link.arrays).large]


def _arrays(link: Link, seed: int) -> list[np.ndarray]:
    """Return the arrays of a message, with random numbers from `seed`."""
    random = np.random.default_rng(seed)
    return [
        np.asarray(random.integers(0, 2 if dtype == np.bool_ else 100, shape)).astype(dtype)
        for shape, dtype in link.specs
    ]


Tell = Callable[..., Future[Any]]
"""The type of a function that sends one side a command, and returns a future of the answer."""


@contextmanager
def both_sides(name: str, transport: Transport, ends: Ends) -> Iterator[tuple[Tell, Tell]]:
    """Run both sides, and yield two functions: one sends commands to the first, one to the second.

    The second side has a process of its own, unless `ends` says that they share one.
    """
    file = MemoryFile.create(_room(transport)) if ends.share_memory else None
    spaces = _spaces(transport, file)
    source, target = (tuple(find_devices(ids)) for ids in (ends.source, ends.target))
    one = _here(Side(transport, source, spaces))
    if ends.one_process:
        yield one, _here(Side(transport, target, spaces))
        return
    mine, theirs = socket.socketpair()
    connection = MessageSocket(mine)
    fds = [theirs.fileno(), *([file.fd] if file else [])]
    at = map(str, (*((file.fd, file.nbytes) if file else (-1, 0)), name, *ends.target))
    command = [sys.executable, "-m", "hocket.testing.transport", str(theirs.fileno())]
    process = subprocess.Popen([*command, *at], pass_fds=fds)
    theirs.close()
    connection.write(get_network())
    try:
        yield one, _Remote(connection)
    finally:
        connection.close()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _room(transport: Transport) -> int:
    return max(1, sum(map(pages, map(transport.room, (kind.link for kind in kinds())))))


def _spaces(transport: Transport, file: MemoryFile | None) -> dict[int, Space]:
    """Return each link's part of the shared memory."""
    spaces, end = {}, 0
    for number, kind in enumerate(kinds()):
        if file and (room := transport.room(kind.link)):
            spaces[number] = Space(file, end, room)
            end += pages(room)
    return spaces


def _here(side: Side) -> Tell:
    def tell(command: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(getattr(side, command)(*arguments))
            except BaseException as error:  # noqa: BLE001 (raised by whoever takes the result)
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    return tell


class _Remote:
    """Sends commands to the side in the other process."""

    def __init__(self, connection: MessageSocket) -> None:
        self._connection, self._asked = connection, dict[int, Future[Any]]()
        threading.Thread(target=self._listen, daemon=True).start()

    def __call__(self, command: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        number = len(self._asked)
        self._asked[number] = future
        self._connection.write((number, command, arguments))
        return future

    def _listen(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                number, answer, failure = self._connection.read()
                if failure:
                    self._asked[number].set_exception(ContractError(failure))
                else:
                    self._asked[number].set_result(answer)


def serve(fd: int, memory: int, nbytes: int, name: str, devices: Sequence[str]) -> None:
    """Act as the side in the other process, until the connection closes."""
    connection, transport = MessageSocket(socket.socket(fileno=fd)), TRANSPORTS[name]
    set_network(connection.read())
    spaces = _spaces(transport, MemoryFile.attach(memory, nbytes) if nbytes else None)
    tell = _here(Side(transport, tuple(find_devices(device_ids(devices))), spaces))

    def answer(number: int, told: Future[Any]) -> None:
        error = told.exception()
        failure = "".join(traceback.format_exception(error)) if error else ""
        connection.write((number, None if error else told.result(), failure))

    while True:
        try:
            number, command, arguments = connection.read()
        except EOFError:
            os._exit(0)  # end the process even if a thread still waits
        told = tell(command, *arguments)
        told.add_done_callback(lambda told, number=number: answer(number, told))
