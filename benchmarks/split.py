"""Measure plans in several places: transports, `averaged`, acting beside learning.

    python benchmarks/split.py                          # all three, about five minutes
    python benchmarks/split.py overlap --rounds 9
    python benchmarks/split.py transports averaged

transports: one array from one instance to another and back, where a crossing is half of that, and
many arrays one way. Beside the transports: two plain sockets, which only send and receive, and
ZeroMQ if it is installed. averaged: the mean of 57,000 float32 over two processes, in a compiled
loop.
overlap: PPO whose acting and learning take about equally long, side by side (`lag=1`: not the fused
program's numbers), against one program on one core and on all cores. The parties of a comparison
take turns in one run, and the quieter half of the rounds counts. Prints one JSON line per figure.
`cpu_ms` is the time of an iteration summed over all cores; `others` is the number of cores that the
rest of the machine used meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

SIZES = {"64 B": 64, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24}
LATE = "lag=1: not the fused program's numbers"
ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
PARTS = ("transports", "averaged", "overlap")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--far", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Variant(**json.loads(options.serve)))
    elif options.echo:
        echo(**json.loads(options.echo))
    elif options.far:
        far_side()
    else:
        for part in options.parts:
            {"transports": transports, "averaged": averages, "overlap": overlap}[part](
                options.rounds
            )


def tell(name: str, value: float, unit: str, **more: object) -> None:
    import jax

    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    line = {"name": name, "value": value, "unit": unit, **more, "hardware": hardware}
    print(json.dumps({**line, "jax": jax.__version__}), flush=True)


class Meter:
    """Counts the cores that this process and its descendants use, and those that all others use."""

    def __init__(self) -> None:
        self._since = self._read()

    def cores(self) -> tuple[float, float]:
        """Return both, averaged over the time since the last call."""
        before, self._since = self._since, self._read()
        seconds, every, mine = (b - a for a, b in zip(before, self._since, strict=True))
        return mine / seconds, max(0.0, (every - mine) / seconds)

    @staticmethod
    def _read() -> tuple[float, float, float]:
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat") as lines:
            user, nice, system, _, _, *rest = map(int, next(lines).split()[1:9])
        parent, ticks = {}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{pid}/stat") as text:
                fields = text.read().rpartition(")")[2].split()
                # Its own time, and the time of its children that have ended.
                parent[int(pid)], ticks[int(pid)] = int(fields[1]), sum(map(int, fields[11:15]))
        mine = {os.getpid()}
        while more := {pid for pid in parent if parent[pid] in mine} - mine:
            mine |= more
        own = sum(ticks.get(pid, 0) for pid in mine)
        return time.perf_counter(), (user + nice + system + sum(rest)) / tick, own / tick


def quieter_half(rounds: Sequence[T], others: Callable[[T], float]) -> list[T]:
    return sorted(rounds, key=others)[: (len(rounds) + 1) // 2]


# Acting beside learning


@contextmanager
def asked(command: Sequence[str], **environment: str) -> Iterator[Callable[..., Any]]:
    """Start a process; `ask(...)` sends it a JSON line and returns its answer."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.stdin and process.stdout
    to, answers = process.stdin, process.stdout

    def ask(**request: Any) -> Any:
        print(json.dumps(request), file=to, flush=True)
        line = answers.readline()
        if not line:
            sys.exit(f"{' '.join(command)} has ended.")
        return json.loads(line)

    try:
        yield ask
    finally:
        with suppress(BrokenPipeError):
            to.close()
        process.wait()


@dataclass(frozen=True)
class Variant:
    """One way to run the same training, in a process of its own that waits for its turn."""

    name: str
    distribute: str = "anakin"
    launch: str = "threads"
    cores: int = 0
    """The cores it may use, without more threads of XLA; 0 for no limit."""
    devices: int = 1
    record: bool = False
    note: str = ""


VARIANTS = (
    Variant("one program on one core", cores=1),
    Variant("one program on all cores"),
    Variant("two replicas as processes", "data_parallel", "processes"),
    Variant("two threads", "actor_learner:actors=1,lag=1", note=LATE),
    Variant("two processes", "actor_learner:actors=1,lag=1", "processes", note=LATE),
)
SEGMENTS = Variant("segments", "actor_learner:actors=1", cores=1, record=True)


def overlap(rounds: int) -> None:
    with served(SEGMENTS) as ask:
        parts = ask(20)["segments"]
    for name, seconds in parts.items():
        tell(f"acrobot, 256 envs: {name}, on one core", round(1e3 * seconds, 2), "ms")
    iterations = max(8, round(1.5 / sum(parts.values())))
    rounds_of = take_turns(VARIANTS, iterations, rounds)
    for variant in VARIANTS:
        turns = [each[variant.name] for each in rounds_of]
        ratios = [
            each[VARIANTS[0].name]["seconds"] / each[variant.name]["seconds"] for each in rounds_of
        ]
        seconds = statistics.median(each["seconds"] for each in turns)
        work = statistics.median(each["seconds"] * each["cores"] for each in turns)
        more = {"busy": turns[0]["busy"]} if turns[0]["busy"] else {}
        tell(
            f"acrobot, 256 envs: {variant.name}",
            round(iterations * 256 * 128 / seconds), "env steps/s",
            ratio=round(statistics.median(ratios), 3),
            spread=[round(min(ratios), 3), round(max(ratios), 3)], against=VARIANTS[0].name,
            cpu_ms=round(1e3 * work / iterations, 1),
            others=round(max(each["others"] for each in turns), 2),
            **more, **({"note": variant.note} if variant.note else {}),
        )  # fmt: skip


def take_turns(variants: Sequence[Variant], iterations: int, rounds: int) -> list[dict[str, Any]]:
    """Let every variant run in each round; return the quieter rounds."""
    with ExitStack() as stack:
        asks = {v.name: stack.enter_context(served(v)) for v in variants}
        answers, meter = [], Meter()
        for _ in range(rounds + 1):
            answers_of = {}
            for name, ask in asks.items():
                meter.cores()
                answers_of[name] = ask(iterations)
                answers_of[name]["cores"], answers_of[name]["others"] = meter.cores()
            answers.append(answers_of)
    warm = answers[1:]
    return quieter_half(
        warm, lambda answers_of: max(each["others"] for each in answers_of.values())
    )


@contextmanager
def served(variant: Variant) -> Iterator[Callable[[int], Any]]:
    """Start a process of the variant; `ask(n)` runs n iterations there and returns its answer."""
    flags = [f"--xla_force_host_platform_device_count={variant.devices}"]
    flags += [ONE_CORE] * bool(variant.cores)
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", json.dumps(asdict(variant))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "XLA_FLAGS": " ".join(flags)},
    )  # fmt: skip

    def ask(iterations: int) -> Any:
        assert process.stdin and process.stdout
        print(iterations, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    try:
        ask(2)  # compiles
        yield ask
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


def serve(variant: Variant) -> None:
    if variant.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: variant.cores])
    import jax

    from hocket import make
    from hocket.algorithms import PPO
    from hocket.runtime.compile.cache import enable_cache
    from hocket.runtime.executor import advance
    from hocket.training.loop import make_executor, plan

    enable_cache()
    # With these sizes, Acrobot's dynamics and the learner are about equally much work.
    algorithm = PPO(env=make("Acrobot-v1"), epochs=1, minibatches=4, hidden=(24, 24), num_envs=256)
    made = plan(algorithm, distribute=variant.distribute, launch=variant.launch)
    executor = make_executor(made, 1_000, record=variant.record)
    executor.start(jax.random.key(0))
    begun = 0
    for line in sys.stdin:
        start = time.perf_counter()
        advance(executor, int(line))
        seconds = time.perf_counter() - start
        busy = {place.name: round(place.busy, 3) for place in executor.activity()}
        seconds_of: dict[str, list[float]] = {}
        timeline = executor.timeline()
        for span in timeline.spans if timeline else ():
            if span.kind == "compute" and span.iteration >= begun:
                seconds_of.setdefault(span.name, []).append(span.end - span.start)
        segments = {name: statistics.median(each) for name, each in seconds_of.items()}
        begun += int(line)
        print(json.dumps({"seconds": seconds, "busy": busy, "segments": segments}), flush=True)
    executor.close()


# Transports


def transports(rounds: int) -> None:
    import jax

    if len(jax.devices()) < 2:
        # JAX fixes the number of devices at its start, and the other parts need one device.
        flags = "--xla_force_host_platform_device_count=2"
        command = [sys.executable, __file__, "transports", "--rounds", str(rounds)]
        subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": flags})
        return
    for size, nbytes in SIZES.items():
        count = 2_000 if nbytes < 1 << 20 else 20
        ways = {
            "same device": between_threads(nbytes, devices=1),
            "device to device": between_threads(nbytes, devices=2),
            "shared memory, the ring alone": between_processes(nbytes, alone=True),
            "shared memory, jax to jax": between_processes(nbytes, alone=False),
            "tcp, the stream alone": over_network(nbytes, "stream"),
            "a plain socket": over_network(nbytes, "socket"),
        }
        if find_spec("zmq"):
            ways["ZeroMQ"] = over_network(nbytes, "zeromq")
        asks = {name: way.__enter__() for name, way in ways.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, ends in asks.items():
                measured = ping_pong(ends, count), stream(ends, count)
                if turn:
                    times[name].append(measured)
        for way in ways.values():
            way.__exit__(None, None, None)
        for name, each in times.items():
            crossing = statistics.median(c for c, _ in each)
            rate = nbytes / statistics.median(s for _, s in each)
            best = sorted(c for c, _ in each)
            least, tenth = (round(1e6 * best[k], 2) for k in (0, len(best) // 10))
            unit = {"unit": "us", "least": least, "p10": tenth}
            tell(f"{name}, {size}: a crossing", round(1e6 * crossing, 2), **unit)
            tell(f"{name}, {size}: one way", round(rate), "bytes/s")


class Ends(NamedTuple):
    """This side's ends of both links, and `begin`, which tells the other side what to do."""

    message: Any
    send: Callable[[Any], None]
    receive: Callable[[], None]
    begin: Callable[[str, int], None]


def ping_pong(ends: Ends, count: int) -> float:
    """Measure the seconds of one crossing."""
    ends.begin("back", count)
    start = time.perf_counter()
    for _ in range(count):
        ends.send(ends.message)
        ends.receive()
    return (time.perf_counter() - start) / (2 * count)


def stream(ends: Ends, count: int) -> float:
    """Measure the seconds per message of many one way; only the last one is answered."""
    ends.begin("last", count)
    start = time.perf_counter()
    for _ in range(count):
        ends.send(ends.message)
    ends.receive()
    return (time.perf_counter() - start) / count


def answer(receive: Callable[[], Any], send: Callable[[Any], None], what: str, count: int) -> None:
    """Act as the other side: send every message back, or only the last one."""
    for number in range(count):
        message = receive()
        if what == "back" or number == count - 1:
            send(message)


@contextmanager
def between_threads(nbytes: int, devices: int) -> Iterator[Ends]:
    import jax

    from hocket.runtime.channels import Here
    from hocket.runtime.channels.transports import device, same_device

    here, there = jax.devices()[0], jax.devices()[devices - 1]
    transport, link = (same_device if devices == 1 else device).TRANSPORT, _link(nbytes)
    boxes: list[tuple[Any, Any]] = []
    for home in (there, here):
        homes = (jax.sharding.SingleDeviceSharding(home),)
        address = transport.listen(link, Here(sends=False, homes=homes))
        ends = (transport.connect(link, address, Here(sends), 1) for sends in (True, False))
        boxes.append((next(ends), next(ends)))
    (send, taken), (back, answered) = boxes

    def receive(inbox: Any) -> Any:
        return jax.block_until_ready(inbox.receive())

    def begin(what: str, count: int) -> None:
        arguments = (lambda: receive(taken)), back.send, what, count
        threading.Thread(target=answer, args=arguments, daemon=True).start()

    message = [jax.device_put(array(nbytes), here)]
    yield Ends(message, send.send, lambda: receive(answered), begin)


@contextmanager
def between_processes(nbytes: int, *, alone: bool) -> Iterator[Ends]:
    import jax

    from hocket.system.shared_memory import MemoryFile

    file = MemoryFile.create(2 * _room(nbytes))
    words = {"fd": file.fd, "nbytes": nbytes, "alone": alone}
    process = subprocess.Popen(
        [sys.executable, __file__, "--echo", json.dumps(words)],
        stdin=subprocess.PIPE, pass_fds=(file.fd,), text=True,
    )  # fmt: skip
    send, receive = _ends(file, nbytes, alone=alone, forth=True)

    def begin(what: str, count: int) -> None:
        print(what, count, file=process.stdin, flush=True)

    message = [array(nbytes)] if alone else [jax.device_put(array(nbytes))]
    try:
        yield Ends(message, send, receive, begin)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


def echo(fd: int, nbytes: int, *, alone: bool) -> None:
    from hocket.system.shared_memory import MemoryFile

    file = MemoryFile.attach(fd, 2 * _room(nbytes))
    send, receive = _ends(file, nbytes, alone=alone, forth=False)
    for line in sys.stdin:
        what, count = line.split()
        answer(receive, send, what, int(count))


def _ends(file: Any, nbytes: int, *, alone: bool, forth: bool) -> tuple[Any, Any]:
    """Return the functions that send and receive on this side of two rings."""
    import jax

    from hocket.runtime.channels import Here
    from hocket.runtime.channels.transports.shared_memory import TRANSPORT
    from hocket.runtime.instance.wiring import End
    from hocket.system.ring import Ring
    from hocket.system.shared_memory import Space

    offsets = (0, _room(nbytes)) if forth else (_room(nbytes), 0)
    if not alone:
        spaces = [Space(file, offset, _room(nbytes)) for offset in offsets]
        sender, receiver = (
            End(_link(nbytes), TRANSPORT, Here(sends, space=space))
            for sends, space in zip((True, False), spaces, strict=True)
        )
        for end in (sender, receiver):
            end.connect(None, 1)
        home = jax.sharding.SingleDeviceSharding(jax.devices()[0])

        def receive() -> Any:  # as an instance does
            return jax.block_until_ready(jax.device_put(receiver.receive(), [home]))

        return sender.send, receive
    specs = [((nbytes // 4,), "float32")]
    rings = [Ring(file.memory, offset, 2, specs) for offset in offsets]

    def lease() -> Any:
        with rings[1].lease() as views:
            return views  # still valid outside the lease: the peer waits for them to come back

    return rings[0].send, lease


@contextmanager
def over_network(nbytes: int, kind: str) -> Iterator[Ends]:
    """Start the other side, and open a connection each way over the loopback interface."""
    import numpy as np

    words = {"kind": kind, "nbytes": nbytes, **LISTEN[kind](nbytes)}
    process = subprocess.Popen(
        [sys.executable, __file__, "--far"], stdin=subprocess.PIPE, text=True
    )
    print(json.dumps(words), file=process.stdin, flush=True)
    send, receive = MEET[kind](nbytes, None)

    def begin(what: str, count: int) -> None:
        print(what, count, file=process.stdin, flush=True)

    try:
        yield Ends([np.array(array(nbytes))], send, receive, begin)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


def far_side() -> None:
    """Act as the other side, which learns from the first line where to connect."""
    words = json.loads(sys.stdin.readline())
    send, receive = MEET[words["kind"]](words["nbytes"], words)
    for line in sys.stdin:
        what, count = line.split()
        answer(receive, send, what, int(count))


def listen_stream(nbytes: int) -> dict[str, str]:
    from hocket.system.network import get_network
    from hocket.system.network.listener import listener

    expected = [listener().expect("benchmark", f"{name} {nbytes}") for name in ("forth", "back")]
    HELD["stream"] = expected
    return {"address": expected[0].address, "secret": get_network().secret.hex()}


def meet_stream(nbytes: int, words: dict[str, str] | None) -> tuple[Any, Any]:
    from hocket.system.network import Network, set_network
    from hocket.system.network.greeting import ConnectionId
    from hocket.system.network.listener import listener
    from hocket.system.network.stream import Stream

    specs = [((nbytes // 4,), "float32")]
    streams = [Stream(specs, 2, sends=sends) for sends in (words is None, words is not None)]
    if words is None:
        for expected, stream in zip(HELD["stream"], streams, strict=True):
            expected.open(0, stream.attach, stream.fail)
        out, back = streams
    else:
        set_network(Network(secret=bytes.fromhex(words["secret"])))
        for name, stream in zip(("forth", "back"), streams, strict=True):
            known = ConnectionId("benchmark", f"{name} {nbytes}")
            listener().begin(words["address"], known, 60.0, stream.attach, stream.fail)
        back, out = streams

    return out.send, back.receive


def listen_socket(nbytes: int) -> dict[str, str]:
    HELD["socket"] = socket.create_server(("127.0.0.1", 0))
    return {"port": HELD["socket"].getsockname()[1]}


def meet_socket(nbytes: int, words: dict[str, Any] | None) -> tuple[Any, Any]:
    """Return functions that each are one loop in C: `sendall`, and a receive of all bytes."""
    if words is None:
        connected = HELD["socket"].accept()[0]
    else:
        connected = socket.create_connection(("127.0.0.1", words["port"]))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(nbytes))

    def receive() -> Any:
        at = 0
        while at < nbytes:
            at += connected.recv_into(buffer[at:], flags=socket.MSG_WAITALL)
        return [buffer]

    return lambda message: connected.sendall(message[0]), receive


def listen_zeromq(nbytes: int) -> dict[str, str]:
    import zmq

    HELD["zeromq"] = zmq.Context.instance().socket(zmq.PAIR)
    return {"port": HELD["zeromq"].bind_to_random_port("tcp://127.0.0.1")}


def meet_zeromq(nbytes: int, words: dict[str, Any] | None) -> tuple[Any, Any]:
    import zmq

    connected = HELD.get("zeromq") or zmq.Context.instance().socket(zmq.PAIR)
    if words:
        connected.connect(f"tcp://127.0.0.1:{words['port']}")
    return (
        lambda message: connected.send(message[0], copy=False),
        lambda: [connected.recv(copy=False).buffer],
    )


HELD: dict[str, Any] = {}
"""What this process listens with, by the kind of connection."""
LISTEN: dict[str, Callable[[int], dict[str, Any]]] = {
    "stream": listen_stream, "socket": listen_socket, "zeromq": listen_zeromq,
}  # fmt: skip
MEET: dict[str, Callable[[int, Any], tuple[Any, Any]]] = {
    "stream": meet_stream, "socket": meet_socket, "zeromq": meet_zeromq,
}  # fmt: skip


def _link(nbytes: int) -> Any:
    """Return a link with those parts that a transport reads."""
    import jax

    from hocket.runtime.channels.links import Link

    specs = (jax.ShapeDtypeStruct((nbytes // 4,), "float32"),)
    return Link(cast("Any", None), 0, 0, (0,), specs, slots=2)


def _room(nbytes: int) -> int:
    from hocket.runtime.channels.transports.shared_memory import TRANSPORT

    room = TRANSPORT.room(_link(nbytes))
    return room + -room % 4096  # whole pages


def array(nbytes: int) -> Any:
    import numpy as np

    return np.arange(nbytes // 4, dtype=np.float32)


# The mean over processes


CALLS, WIDTH = 200, 57_000


def averages(rounds: int) -> None:
    import jax

    from hocket.runtime.executor import advance
    from hocket.training.loop import make_executor, plan

    plans = {
        "in one program": plan(averaging(), distribute="anakin:devices=1"),
        "over two processes": plan(averaging(), distribute="data_parallel", launch="processes"),
    }
    executors = {name: make_executor(made, 1_000) for name, made in plans.items()}
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    try:
        for executor in executors.values():
            executor.start(jax.random.key(0))
            advance(executor, 2)
        for turn in range(rounds + 1):
            for name, executor in executors.items():
                start = time.perf_counter()
                advance(executor, 5)
                if turn:
                    seconds[name].append((time.perf_counter() - start) / (5 * CALLS))
    finally:
        for executor in executors.values():
            executor.close()
    alone, whole = (statistics.median(each) for each in seconds.values())
    name = f"averaged of {WIDTH:,} float32"
    tell(f"{name}: a turn of the loop, in one program", round(1e6 * alone, 1), "us")
    tell(f"{name}: the same with two processes", round(1e6 * whole, 1), "us")
    tell(f"{name}: a call", round(1e6 * (whole - alone), 1), "us")


def averaging() -> Any:
    """Make an algorithm that does little except averaging."""
    import jax

    from hocket import averaged, fragment

    class State(NamedTuple):
        scores: Any
        params: Any

    class Averaging:
        env_steps, num_envs = 1, 8

        def init(self, key: Any, num_envs: int) -> Any:
            params = jax.random.normal(key, (WIDTH,))
            return State(jax.vmap(jax.random.uniform)(jax.random.split(key, num_envs)), params)

        def step(self, state: Any) -> Any:
            params = self.update(state.params, state.scores)
            return State(state.scores, params), {"params": params[0]}

        @fragment(role="learn")
        def update(self, params: Any, scores: Any) -> Any:
            def once(params: Any, _: None) -> Any:
                return 0.99 * params + 0.01 * averaged(params * scores.mean()), None

            return jax.lax.scan(once, params, None, CALLS)[0]

        def policy(self, state: Any, explore: bool = False) -> Any:
            raise NotImplementedError

    return Averaging()


if __name__ == "__main__":
    main()
