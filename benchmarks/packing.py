"""Measure what packing saves on a trajectory of twelve small arrays between two processes.

    python benchmarks/packing.py                          # messages, about a minute
    python benchmarks/packing.py messages --rounds 9
    python benchmarks/packing.py training                 # four actors and a learner

messages: the trajectory goes from this process to one that it starts, and back. Both are on the
same device (a GPU, if there is one). Messages are packed nowhere, where they are received, or at
both ends; the three take turns in one run. A crossing is half of there and back, from arrays on a
device to arrays on a device. training: IMPALA whose actors and learner are processes on that device
and do not wait for each other, packed and unpacked, with one and with two samples an iteration.
Prints one JSON line per figure. `ratio` is the speed against unpacked, as the median over rounds;
`from_device` and `to_device` count the copies between a device and the host for one message.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share a GPU

PARTS = ("messages", "training")
ENVS = {"16 envs": 16, "256 envs": 256, "2,048 envs": 2048}
LENGTH = 16
WAYS = {"unpacked": (False, False), "packed on arrival": (False, True), "packed": (True, True)}
"""For each way, if a message is packed where it is sent, and where it is received."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS[:1], help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        echo(**json.loads(options.echo))
        return
    for part in options.parts:
        {"messages": messages, "training": training}[part](options.rounds)


def tell(name: str, value: float, unit: str, **more: object) -> None:
    import jax

    device = jax.devices()[0]
    line = {"name": name, "value": value, "unit": unit, **more, "device": device.device_kind}
    print(json.dumps({**line, "jax": jax.__version__}), flush=True)


# Messages


class Way(NamedTuple):
    """How this side sends and receives, and tells the other side the number of messages."""

    send: Callable[[list[Any]], None]
    receive: Callable[[], list[Any]]
    begin: Callable[[int], None]


def messages(rounds: int) -> None:
    for size, num_envs in ENVS.items():
        message, seconds = trajectory(num_envs), {name: [] for name in WAYS}
        with ExitStack() as stack:
            ways = {name: stack.enter_context(between(num_envs, name)) for name in WAYS}
            for way in ways.values():
                ping_pong(way, message, 10)  # compiles
            count = max(10, min(2_000, round(0.3 / ping_pong(ways["unpacked"], message, 20))))
            for _ in range(rounds):
                for name, way in ways.items():
                    seconds[name].append(ping_pong(way, message, count))
        for name, times in seconds.items():
            out, back = (transfers(num_envs, packed=packed) for packed in WAYS[name])
            tell(
                f"12 arrays, {size}, {name}: a crossing",
                round(1e6 * statistics.median(times), 1), "us", least=round(1e6 * min(times), 1),
                bytes=sum(x.nbytes for x in message), from_device=out, to_device=back,
                **against(seconds["unpacked"], times),
            )  # fmt: skip


def against(usual: list[float], times: list[float]) -> dict[str, Any]:
    """Compare the speeds round by round."""
    ratios = [a / b for a, b in zip(usual, times, strict=True)]
    spread = [round(min(ratios), 3), round(max(ratios), 3)]
    return {"ratio": round(statistics.median(ratios), 3), "spread": spread}


def ping_pong(way: Way, message: list[Any], count: int) -> float:
    """Measure the seconds of one crossing."""
    way.begin(count)
    start = time.perf_counter()
    for _ in range(count):
        way.send(message)
        way.receive()
    return (time.perf_counter() - start) / (2 * count)


@functools.cache
def trajectory(num_envs: int) -> list[Any]:
    """Return arrays like those of PPO: observations, actions, rewards, flags and keys."""
    import jax
    import jax.numpy as jnp

    rows = (LENGTH, num_envs)
    made = [
        jnp.ones((*rows, 4)), jnp.ones((*rows, 4)), jnp.ones(rows, jnp.int32), jnp.ones(rows),
        jnp.zeros(rows, bool), jnp.zeros(rows, bool), jnp.ones(rows), jnp.ones(rows),
        jnp.ones(rows, jnp.int32), jnp.ones(rows), jnp.ones((num_envs, 4)),
        jax.random.split(jax.random.key(0), num_envs),
    ]  # fmt: skip
    return jax.block_until_ready(made)


def transfers(num_envs: int, *, packed: bool) -> int:
    """Count the copies between a device and the host for one message."""
    from hocket.runtime.channels.packing import packing

    return len(packing(specs(num_envs)).specs(packed=packed))


def specs(num_envs: int) -> tuple[Any, ...]:
    import jax

    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in trajectory(num_envs))


@contextmanager
def between(num_envs: int, way: str) -> Iterator[Way]:
    from hocket.system.shared_memory import MemoryFile

    file = MemoryFile.create(2 * _room(num_envs))
    words = {"fd": file.fd, "num_envs": num_envs, "way": way}
    process = subprocess.Popen(
        [sys.executable, __file__, "--echo", json.dumps(words)],
        stdin=subprocess.PIPE, pass_fds=(file.fd,), text=True,
    )  # fmt: skip
    send, receive = ends(file, num_envs, way, forth=True)

    def begin(count: int) -> None:
        print(count, file=process.stdin, flush=True)

    try:
        yield Way(send, receive, begin)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


def echo(fd: int, num_envs: int, way: str) -> None:
    from hocket.system.shared_memory import MemoryFile

    file = MemoryFile.attach(fd, 2 * _room(num_envs))
    send, receive = ends(file, num_envs, way, forth=False)
    for line in sys.stdin:
        for _ in range(int(line)):
            send(receive())


def ends(file: Any, num_envs: int, way: str, *, forth: bool) -> tuple[Any, Any]:
    """Return the functions that send and receive on this side of two rings, as an instance does."""
    import jax

    from hocket.runtime.channels import Here
    from hocket.runtime.channels.joins import FIRST, Assembly, Part
    from hocket.runtime.channels.packing import Packed, unpack
    from hocket.runtime.channels.transports.shared_memory import TRANSPORT
    from hocket.runtime.instance.wiring import End
    from hocket.system.shared_memory import Space

    offsets = (0, _room(num_envs)) if forth else (_room(num_envs), 0)
    sender, receiver = (
        End(
            replace(_link(num_envs), packed=packed), TRANSPORT,
            Here(sends, space=Space(file, at, _room(num_envs))),
        )
        for sends, at, packed in zip((True, False), offsets, WAYS[way], strict=True)
    )  # fmt: skip
    for end in (sender, receiver):
        end.connect(None, 1)
    home = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    joins = tuple(Assembly(FIRST, (Part(0, k),)) for k in range(len(specs(num_envs))))

    def receive() -> list[Any]:
        message = receiver.receive()
        whole = isinstance(message, Packed)
        here = unpack([message], joins, home) if whole else jax.device_put(message, home)
        return jax.block_until_ready(here)

    return sender.send, receive


def _link(num_envs: int) -> Any:
    """Return a link with those parts that a transport reads."""
    from hocket.runtime.channels.links import Link

    return Link(cast("Any", None), 0, 0, (0,), specs(num_envs), slots=2)


def _room(num_envs: int) -> int:
    from hocket.runtime.channels.transports.shared_memory import TRANSPORT

    room = TRANSPORT.room(_link(num_envs))
    return room + -room % 4096  # whole pages


# Training


def training(rounds: int) -> None:
    import jax

    from hocket import Channel, make
    from hocket.algorithms import IMPALA
    from hocket.runtime.executor import advance
    from hocket.training.loop import make_executor, plan

    impala = IMPALA(env=make("CartPole-v1"), num_envs=1024)
    for batch in (1, 2):  # samples of an iteration
        words = f"actor_learner:actors=4,lag=free,max_age=4,batch={batch}"
        made = plan(impala, distribute=words, launch="processes")
        executors = {}
        for pack in (False, True):
            channels = dict.fromkeys(("actor -> learner", "learner -> actor"), Channel(pack=pack))
            executors[pack] = make_executor(replace(made, channels=channels), 1_000_000)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        try:
            for executor in executors.values():
                executor.start(jax.random.key(0))
                advance(executor, 10)
                executor.crew.pause()
            for _ in range(rounds):
                for pack, executor in executors.items():
                    start = time.perf_counter()
                    advance(executor, 64)
                    seconds[pack].append(time.perf_counter() - start)
                    executor.crew.pause()  # the other one has the device to itself
        finally:
            for executor in executors.values():
                executor.close()
        for pack, times in seconds.items():
            how = "packed" if pack else "unpacked"
            tell(
                f"impala, 1,024 envs, 4 actors, {batch} samples an iteration, {how}",
                round(64 * made.iteration.env_steps / statistics.median(times)), "env steps/s",
                **against(seconds[False], times),
            )  # fmt: skip


if __name__ == "__main__":
    main()
