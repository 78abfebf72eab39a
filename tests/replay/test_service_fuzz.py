"""Clients that send nonsense or misbehave for a while do not disturb a client that behaves.

HOCKET_FUZZ_SECONDS says for how long; the default is 4.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.replay.carriers import (
    CARRIERS,
    FOREVER,
    FRAMES,
    HAS_NUMBERS,
    HELLO,
    INFO,
    INSERT,
    MORE,
    PATIENCE,
    PROBE,
    REPLY,
    SAMPLE,
    SCHEMA,
    UPDATE,
    Elsewhere,
    Message,
    Raw,
    RawPackets,
    RawRegion,
    address,
    eventually,
    insert_message,
    packet,
    rows,
    schema_hash,
    serving_elsewhere,
    still_serves,
)

from hocket.replay import connect

SECONDS = float(os.environ.get("HOCKET_FUZZ_SECONDS", "4"))
OTHER = "x:uint8:1000"
TABLES = {
    "replay": {"schema": SCHEMA, "capacity": 100, "seed": 6},
    # For the clients that misbehave.
    "other": {"schema": OTHER, "capacity": 50},
}


def message(rng: random.Random) -> Message:
    """A nearly correct message, for the other table."""
    num = rng.choice([0, 1, 2, 10, 60])
    numbers = rng.randbytes(4 * num) if rng.random() < 0.5 else b""
    flags = HAS_NUMBERS if numbers else 0
    body = {
        INSERT: numbers + bytes(1000 * num),
        SAMPLE: numbers,
        UPDATE: rng.randbytes(12 * num),
        FRAMES: b"",
    }
    op = rng.choice([HELLO, INSERT, INSERT, SAMPLE, SAMPLE, UPDATE, FRAMES, INFO])
    message = Message(
        op, body.get(op, b""), num, 1, request=rng.randrange(100), flags=flags,
        schema=schema_hash(OTHER), timeout_ms=rng.choice([0, 1, 20, FOREVER]),
    )  # fmt: skip
    if rng.random() < 0.2:
        name = rng.choice(["rows", "table", "flags", "op", "version", "length", "schema"])
        setattr(message, name, rng.choice([0, 1, 7, 2**16 - 1]))
    return message


def mutated(rng: random.Random) -> bytes:
    data = bytearray(message(rng).pack())
    for _ in range(rng.randrange(3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def stream(
    server: Elsewhere, carrier: str, done: threading.Event
) -> Callable[[random.Random], None]:
    """Open a connection on which something goes wrong."""

    def misbehave(rng: random.Random) -> None:
        with Raw(server, carrier) as raw:
            raw.socket.settimeout(0.2)
            for _ in range(rng.randrange(1, 30)):
                if done.is_set():
                    break
                how = rng.randrange(7)
                if how == 0:
                    raw.send(rng.randbytes(rng.randrange(300)))
                elif how == 1:  # one half, and perhaps the end of the connection
                    data = mutated(rng)
                    raw.send(data[: rng.randrange(len(data))])
                    return
                elif how == 2:
                    raw.send(Message(INSERT, rows=2**20, length=rng.choice([2**29, 2**60])))
                elif how == 3:  # slowly
                    for byte in message(rng).pack()[:200]:
                        raw.send(bytes([byte]))
                elif how == 4:  # without reading the replies
                    raw.send(*(message(rng) for _ in range(50)))
                elif how == 5:
                    raw.send(mutated(rng))
                else:
                    raw.ask(message(rng))

    return misbehave


def shared(server: Elsewhere, done: threading.Event) -> Callable[[random.Random], None]:
    """Share memory, and write to it at random."""

    def misbehave(rng: random.Random) -> None:
        with Raw(server, "unix") as raw, RawRegion(raw, rng.randrange(1, 65)) as region:
            assert region.memory and region.answer.code == 0
            for _ in range(rng.randrange(1, 30)):
                if done.is_set():
                    break
                slot = rng.randrange(region.slots)
                how = rng.randrange(4)
                if how == 0:
                    at = rng.randrange(len(region.memory) - 100)
                    region.memory[at : at + 100] = rng.randbytes(100)
                elif how == 1:
                    region.put(rng.choice([slot, 2**32 - 1]))
                elif how == 2:
                    region.write(slot, mutated(rng)[:4096])
                    region.put(slot)
                else:
                    region.put(slot, advance=rng.choice([1, 64, 2**60]))

    return misbehave


def packets(server: Elsewhere, done: threading.Event) -> Callable[[random.Random], None]:
    """Send packets that are damaged, doubled, missing or without a message, then a goodbye."""

    def misbehave(rng: random.Random) -> None:
        with RawPackets(server) as raw:
            raw.socket.settimeout(0.2)
            number = 1
            for _ in range(rng.randrange(1, 30)):
                if done.is_set():
                    break
                number += rng.choice([0, 0, 1, 1, 20])
                data, like = message(rng).pack(), {"client": raw.client, "number": number}
                how = rng.randrange(5)
                if how == 0:
                    raw.socket.send(rng.randbytes(rng.randrange(300)))
                elif how == 1:
                    damaged = bytearray(packet(data[:8000], **like))
                    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                    raw.socket.send(damaged)
                elif how == 2:  # some packets of many, perhaps of two messages
                    many = -(-len(data) // 512)
                    for k in rng.sample(range(many), rng.randrange(many + 1)):
                        part, like["length"] = data[512 * k : 512 * k + 512], len(data)
                        about = {"fragment": k, "fragments": many, "stride": 512}
                        raw.socket.send(packet(part, **about, **like))
                elif how == 3:
                    gaps = rng.randbytes(8 * rng.randrange(64))
                    kind = rng.choice([MORE, PROBE, REPLY, REPLY + 1])
                    raw.socket.send(packet(gaps, behind=rng.randrange(number), kind=kind, **like))
                else:
                    whole = packet(data[:8000], behind=rng.randrange(min(number, 20)), **like)
                    for _ in range(rng.randrange(1, 4)):
                        raw.socket.send(whole)
            raw.goodbye(number + 100)

    return misbehave


@pytest.mark.timeout(SECONDS + 200)
def test_nonsense_for_a_while() -> None:
    with serving_elsewhere(TABLES, max_bytes=2**28) as server:
        done, rounds, problems = threading.Event(), [0] * 32, []
        streams = [stream(server, "unix", done), stream(server, "tcp", done)]
        kinds = [*streams, shared(server, done), packets(server, done)]

        def misbehave(which: int) -> None:
            rng = random.Random(which)
            while not done.is_set():
                # The server may do anything to such a client.
                with contextlib.suppress(OSError, EOFError):
                    kinds[which % len(kinds)](rng)
                rounds[which] += 1

        def behave(carrier: str, number: int) -> None:
            try:
                client = connect(address(server, carrier), table="replay")
                while not done.is_set():
                    keys = client.insert(rows(number, number), [1.0, 2.0])
                    assert keys.shape == (2, 2)
                    for num in (1, 64, 1000):
                        batch = client.sample(num, timeout=PATIENCE)
                        actions = batch.rows["action"]
                        np.testing.assert_array_equal(batch.rows["obs"][:, 3], actions)
                        assert set(actions.tolist()) <= set(range(len(CARRIERS)))
                        client.update(batch.keys, np.ones(num))
            except BaseException as error:
                problems.append((carrier, error))
                raise

        threads = [threading.Thread(target=misbehave, args=(i,)) for i in range(32)]
        threads += [threading.Thread(target=behave, args=(c, i)) for i, c in enumerate(CARRIERS)]
        for thread in threads:
            thread.start()
        end, sizes = time.monotonic() + SECONDS, []
        try:
            while time.monotonic() < end and not problems:
                done.wait(SECONDS / 20)
                sizes.append(server.resident())
        finally:
            done.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert not problems and not any(thread.is_alive() for thread in threads)
        assert min(rounds) > 0

        watcher = connect(address(server, "tcp"), table="replay")
        eventually(lambda: watcher.info()["clients"] == 1, "all are gone")
        info = watcher.info()
        assert info["waiting"] == 0 and info["refused"] > 0 and info["size"] >= 2 * len(CARRIERS)
        # After a while it takes no more than before, when the largest requests were under way.
        assert server.resident() < max(sizes[: len(sizes) // 2]) + 2**25
        assert server.regions() == 0 and server.files() < 30
        still_serves_a_table(server)


def still_serves_a_table(server: Elsewhere) -> None:
    clients = [connect(address(server, carrier), table="replay") for carrier in CARRIERS]
    clients[0].clear()
    for number, client in enumerate(clients):
        client.insert(rows(number))
        batch = client.sample(100)
        assert set(batch.rows["action"].tolist()) == set(range(number + 1))


def test_the_messages_are_nearly_right() -> None:
    """Most of them must be answered, or the test would only test refusals."""
    rng = random.Random(0)
    with serving_elsewhere(TABLES) as server, Raw(server, "tcp") as raw:
        connect(address(server, "tcp"), table="other").insert({"x": np.zeros((50, 1000), np.uint8)})
        codes = []
        for _ in range(300):
            asked = message(rng)
            if asked.length is None and asked.version == 1 and asked.op in range(1, 9):
                asked.timeout_ms = 0
                codes.append(raw.ask(asked).code)
        assert len(codes) > 200 and codes.count(0) > 80 and codes.count(2) > 40
        assert struct.calcsize("<IHHHHIQQIIQQfI") == len(Message(HELLO).pack())
        assert raw.ask(insert_message(1.0)).code == 0
        one = {"replay": TABLES["replay"]}
    with serving_elsewhere(one) as server:
        still_serves(server)
