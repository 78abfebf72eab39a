"""Replay servers for tests, in this process and in another, and raw messages to send to them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hocket.replay import Batch, Client, Server, Table, connect, serve

CARRIERS = ("shm", "unix", "tcp", "udp")
STREAMS = ("unix", "tcp")
CONNECTED = ("shm", "unix", "tcp")
"""Whose ends are told of each other's end, at once."""
SILENCE = "did not answer for 5 s: see that it runs, and that packets reach it"
"""The error of a client over UDP, which is not told that its server is gone."""
SCHEMA = "obs:float32:4 action:int32"
PATIENCE = 60.0
"""Seconds after which a test says that something hangs."""


def rows(*numbers: float) -> dict[str, np.ndarray]:
    """Rows that can be told apart by their numbers."""
    obs = np.repeat(np.array(numbers, np.float32)[:, None], 4, axis=1)
    return {"obs": obs, "action": np.array(numbers, np.int32)}


def numbers(batch: Batch) -> list[int]:
    np.testing.assert_array_equal(batch.rows["obs"][:, 0], batch.rows["action"])
    return batch.rows["action"].tolist()


def same(one: Batch, other: Batch) -> None:
    assert one.evenly == other.evenly
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.probability, other.probability)
    assert one.rows.keys() == other.rows.keys()
    for name, array in one.rows.items():
        assert array.dtype == other.rows[name].dtype
        np.testing.assert_array_equal(array, other.rows[name])


def eventually(is_so: Callable[[], Any], what: str = "") -> None:
    """Wait until another process or thread has made `is_so` true."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, f"it was never so: {what or is_so}"
        time.sleep(0.002)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


# Servers

PORTS = {"tcp": "127.0.0.1:0", "udp": "127.0.0.1:0"}


@contextmanager
def serving(tables: Table | Mapping[str, Table], **options: Any) -> Iterator[Server]:
    """Serve a table at a Unix socket with a short path, and at a TCP and a UDP port."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(tables, unix=f"{folder}/replay", **PORTS, **options) as server,
    ):
        yield server


def address(server: Server | Elsewhere, carrier: str) -> str:
    return next(
        candidate for candidate in server.addresses if candidate.startswith(f"{carrier}://")
    )


def where(server: Server | Elsewhere, carrier: str) -> str | tuple[str, int]:
    """The address of a server for a plain socket."""
    place = address(server, "unix" if carrier == "shm" else carrier).partition("://")[2]
    if carrier not in ("tcp", "udp"):
        return place
    host, _, port = place.rpartition(":")
    return host, int(port)


_SCRIPT = """
import sys
from hocket.replay import Table, serve
tables = {name: Table(**options) for name, options in %r.items()}
server = serve(tables, **%r)
print(*server.addresses, flush=True)
sys.stdin.read()
server.close()
"""


@dataclass
class Elsewhere:
    """A server in another process."""

    process: subprocess.Popen[str]
    addresses: tuple[str, ...]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def resident(self) -> int:
        """The bytes of memory of a server, without those that it shares with clients."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def regions(self) -> int:
        """The memory regions that a server shares with clients."""
        return Path(f"/proc/{self.process.pid}/maps").read_text().count("memfd:")


@contextmanager
def serving_elsewhere(tables: Mapping[str, dict[str, Any]], **options: Any) -> Iterator[Elsewhere]:
    with tempfile.TemporaryDirectory() as folder:
        options = {"unix": f"{folder}/replay", **PORTS, **options}
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT % (dict(tables), options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin and process.stdout
        try:
            yield Elsewhere(process, tuple(process.stdout.readline().split()))
        finally:
            process.stdin.close()
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()


@contextmanager
def client_elsewhere(at: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a script with a connected `replay`; read what it prints."""
    begin = (
        "import sys, os, signal, threading, time, numpy as np\n"
        "from hocket.replay import connect\n"
        f"replay = connect({at!r})\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", begin + script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def still_serves(server: Server | Elsewhere, *clients: Client) -> None:
    """Check that these clients, and a new one on each carrier, get correct answers."""
    new = [connect(address(server, carrier)) for carrier in CARRIERS]
    for client in (*clients, *new):
        is_served(client)
    for client in new:
        client.close()


def is_served(client: Client) -> None:
    keys = client.insert(rows(7.0, 8.0, 9.0))
    batch = client.sample(8)
    np.testing.assert_array_equal(batch.rows["obs"][:, 0], batch.rows["action"])
    assert client.update(keys, [1.0, 1.0, 1.0]) == 0
    assert client.info()["size"] >= 1


# Raw messages, as in wire.h

HELLO, INSERT, SAMPLE, UPDATE, FRAMES, INFO, RESET, SAVE, MAP, BYE = range(1, 11)
OK, TIMEOUT, BAD, CLOSED = range(4)
HAS_NUMBERS, EVENLY = 1, 2
MAGIC, FOREVER = 0x544B4F48, 2**32 - 1
_HEADER = struct.Struct("<IHHHHIQQIIQQfI")


def schema_hash(text: str) -> int:
    digest = 14695981039346656037
    for byte in text.encode():
        digest = (digest ^ byte) * 1099511628211 % 2**64
    return digest


@dataclass
class Message:
    op: int
    body: bytes = b""
    rows: int = 0
    table: int = 0
    code: int = OK
    request: int = 1
    schema: int = field(default_factory=lambda: schema_hash(SCHEMA))
    flags: int = 0
    timeout_ms: int = 0
    length: int | None = None
    """The length of the body in the header; None for the true one."""
    magic: int = MAGIC
    version: int = 1

    def pack(self) -> bytes:
        length = len(self.body) if self.length is None else self.length
        header = (
            self.magic, self.version, self.op, self.code, self.table, self.rows, self.request,
            self.schema, self.flags, self.timeout_ms, length, 0, 0.0, 0,
        )  # fmt: skip
        return _HEADER.pack(*header) + self.body

    @staticmethod
    def unpack(header: bytes) -> Message:
        magic, version, op, code, table, rows, request, schema, flags, ms, length, *_ = (
            _HEADER.unpack(header)
        )
        return Message(
            op, b"", rows, table, code, request, schema, flags, ms, length, magic, version
        )

    @property
    def text(self) -> str:
        return self.body.decode()


def insert_message(*numbers: float, **options: Any) -> Message:
    columns = rows(*numbers)
    return Message(
        INSERT, columns["obs"].tobytes() + columns["action"].tobytes(), len(numbers), **options
    )


class Raw:
    """A connection for tests that sends any bytes."""

    def __init__(self, server: Server | Elsewhere | Path, carrier: str = "unix") -> None:
        family = socket.AF_INET if carrier == "tcp" else socket.AF_UNIX
        self.socket = socket.socket(family)
        self.socket.settimeout(PATIENCE)
        at = str(server) if isinstance(server, Path) else where(server, carrier)
        self.socket.connect(at)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *messages: Message | bytes) -> None:
        self.socket.sendall(b"".join(m if isinstance(m, bytes) else m.pack() for m in messages))

    def send_for_ever(self, data: bytes) -> NoReturn:
        while True:
            self.socket.sendall(data)

    def read(self, num: int) -> bytes:
        data = b""
        while len(data) < num:
            more = self.socket.recv(num - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def receive(self) -> Message:
        message = Message.unpack(self.read(_HEADER.size))
        assert message.magic == MAGIC and message.length is not None
        return replace(message, body=self.read(message.length))

    def ask(self, message: Message) -> Message:
        self.send(message)
        return self.receive()

    def is_answered(self, message: Message) -> bool:
        """True if a request gets an answer, False if the connection is closed instead."""
        try:
            return self.ask(message).code == OK
        except (EOFError, ConnectionError):
            return False

    def is_closed(self) -> bool:
        """True if the connection has ended, and nothing more comes."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True


REQUEST, PROBE, MORE, REPLY = range(1, 5)
_PACKET = struct.Struct("<IBBHQQIIIIIHH")
_PACKET_MAGIC, _ODD, _MASK = 0x47444B48, 0x9E3779B97F4A7C15, 2**64 - 1


def _mixed(x: int) -> int:
    for _ in range(2):
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & _MASK
    return x ^ x >> 32


def _digest(data: bytes, seed: int) -> int:
    lanes = [seed ^ len(data), seed + _ODD & _MASK, seed ^ _MASK, seed ^ _ODD]
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    fours, whole = len(data) // 32 * 4, len(data) // 8
    for at in range(fours):
        lane = (lanes[at % 4] ^ words[at]) * _ODD & _MASK
        lanes[at % 4] = lane ^ lane >> 29
    for word in words[fours:whole]:
        lanes[0] = _mixed(lanes[0] ^ word)
    digest = lanes[0] ^ (words[whole] if whole < len(words) else 0)
    for lane in lanes[1:]:
        digest = _mixed(digest) ^ lane
    return _mixed(digest)


def packet(
    payload: bytes, *, client: int = 1, number: int = 1, behind: int = 0, kind: int = REQUEST,
    fragment: int = 0, fragments: int = 1, stride: int = 8192, length: int | None = None,
    check: int | None = None,
) -> bytes:  # fmt: skip
    """Make a packet as in datagram.h, with the right checksum unless another is given."""
    length = len(payload) if length is None else length
    head = (_PACKET_MAGIC, 1, kind, stride, client, number, fragment, fragments, length, 64)
    if check is None:
        bare = _PACKET.pack(*head, 0, behind, 0)
        digest = _digest(payload, _digest(bare, _ODD))
        check = digest >> 32 ^ digest & 2**32 - 1
    return _PACKET.pack(*head, check, behind, 0) + payload


class RawPackets:
    """A client over UDP for tests that sends any packets, one request after the other."""

    def __init__(self, server: Server | Elsewhere) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(where(server, "udp"))
        self.client, self.asked = int.from_bytes(os.urandom(8), "little"), 0

    def __enter__(self) -> RawPackets:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, message: Message) -> Message:
        self.asked += 1
        self.socket.send(packet(message.pack(), client=self.client, number=self.asked))
        reply = self.socket.recv(2**16)
        header, payload = _PACKET.unpack(reply[: _PACKET.size]), reply[_PACKET.size :]
        assert header[2] == REPLY and header[4:6] == (self.client, self.asked)
        size = _HEADER.size
        return replace(Message.unpack(payload[:size]), body=payload[size:])

    def goodbye(self, number: int) -> None:
        """Say goodbye and wait for the answer. A client that is silent is kept for a minute."""
        bye = packet(Message(BYE).pack(), client=self.client, number=number)
        for _ in range(100):
            self.socket.send(bye)
            with contextlib.suppress(TimeoutError):
                while _PACKET.unpack(self.socket.recv(2**16)[: _PACKET.size])[5] != number:
                    pass
                return

    def hears_nothing(self, seconds: float = 0.05) -> bool:
        self.socket.settimeout(seconds)
        try:
            return not self.socket.recv(2**16)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)


_HEAD, _RING, _LINES, _SLOTS_AT = 64, 128, 384, 8576


class RawRegion:
    """Memory shared with a server, as in region.h, that a test can write anything to."""

    def __init__(
        self, raw: Raw, slots: int = 4, request_bytes: int = 4096, reply_bytes: int = 4096, *,
        size: int | None = None, seals: bool = True, files: list[int] | None = None,
    ) -> None:  # fmt: skip
        self.stride = -(-request_bytes // 64) * 64 + -(-reply_bytes // 64) * 64
        self.reply_offset = -(-request_bytes // 64) * 64
        self.slots = slots
        size = _SLOTS_AT + slots * self.stride if size is None else size
        self.file = os.memfd_create("raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.bell = os.eventfd(0)
        os.ftruncate(self.file, size)
        if seals:
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.memory = mmap.mmap(self.file, size) if size else None
        self.asked = 0
        body = struct.pack("<QQII", request_bytes, reply_bytes, slots, 0)
        files = [self.file, self.bell] if files is None else files
        socket.send_fds(raw.socket, [Message(MAP, body).pack()], files)
        self.answer = raw.receive()

    def __enter__(self) -> RawRegion:
        return self

    def __exit__(self, *_: object) -> None:
        if self.memory:
            self.memory.close()
        os.close(self.file)
        os.close(self.bell)

    def write(self, slot: int, data: bytes) -> None:
        assert self.memory
        at = _SLOTS_AT + slot * self.stride
        self.memory[at : at + len(data)] = data

    def put(self, *slots: int, advance: int | None = None) -> None:
        """Put a slot into the ring, and ring the bell."""
        assert self.memory
        for slot in slots:
            struct.pack_into("<I", self.memory, _RING + self.asked % 64 * 4, slot)
            self.asked += 1
        if advance is not None:
            self.asked = (self.asked + advance) % 2**64
        struct.pack_into("<Q", self.memory, _HEAD, self.asked)
        os.eventfd_write(self.bell, 1)

    def state(self, slot: int) -> int:
        assert self.memory
        return struct.unpack_from("<I", self.memory, _LINES + slot * 128 + 64)[0]

    def reply(self, slot: int) -> Message:
        eventually(lambda: self.state(slot) == 2, "answered")
        assert self.memory
        at = _SLOTS_AT + slot * self.stride + self.reply_offset
        message = Message.unpack(self.memory[at : at + 64])
        assert message.length is not None
        return replace(message, body=self.memory[at + 64 : at + 64 + message.length])

    def ask(self, slot: int, message: Message) -> Message:
        assert self.memory
        struct.pack_into("<I", self.memory, _LINES + slot * 128 + 64, 1)
        self.write(slot, message.pack())
        self.put(slot)
        return self.reply(slot)
