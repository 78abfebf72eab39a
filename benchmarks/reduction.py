"""Measure `averaged` between processes: of one GPU (`ipc`, `shm`), or of CPUs (`shm`, `tcp`).

    python benchmarks/reduction.py                      # one GPU: under two minutes
    python benchmarks/reduction.py --sets mps2 --calls 1000
    python benchmarks/reduction.py --sets cpu2 cpu4     # memory beside TCP over loopback

Two and four processes under MPS average vectors of 57,288 and of a million float32 in a compiled
loop; `loop` is the same loop without averaging. Then the same with loops recorded as command
buffers, and NCCL with one process. Before anything is timed, every process compares the means of
200 random vectors with NumPy's, bit for bit. At the end one process is left waiting, once until its
time is up, and once until another closes the group. Prints one JSON line per figure, and a line
whose name begins with "failed" for each failure. Without a GPU it does what a CPU can.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import secrets
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

SIZES = (57_288, 1_000_000)
EPOCHS = 200
SECONDS = 1.0
"""How long a loop is timed in all: the GPU's counters are refreshed ten times a second."""
TYPICAL = {
    "loop": (10, 10), "ipc": (20, 40), "shm": (150, 1800), "nccl": (20, 30), "tcp": (150, 3000),
}  # fmt: skip
"""Rough microseconds of a call for each size: all processes must time equally many rounds."""
WHILE = "--xla_gpu_enable_command_buffer=+WHILE"
SET_SECONDS = 75.0
"""The seconds after which the processes of one set are ended."""


class Set(NamedTuple):
    """Processes that are measured together."""

    ranks: int
    flags: str = ""
    ways: tuple[str, ...] = ("ipc", "shm")
    on_host: bool = False


SETS = {
    "mps2": Set(2),
    "mps4": Set(4),
    "mps2-while": Set(2, WHILE, ("ipc",)),
    "nccl1": Set(1, "", ("nccl",)),
    "cpu2": Set(2, "", ("shm", "tcp"), on_host=True),
    "cpu4": Set(4, "", ("shm", "tcp"), on_host=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--calls", type=int, default=200, help="calls in a timed loop")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds in all")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        child(**json.loads(options.rank))
        return
    deadline = time.monotonic() + options.budget
    for name in options.sets:
        if time.monotonic() + 20 > deadline:
            tell("skipped", set=name, why="no time is left")
            continue
        run_set(name, options.calls, min(deadline, time.monotonic() + SET_SECONDS))


def tell(name: str, **more: object) -> None:
    print(json.dumps({"name": name, **more}), flush=True)


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None


def names_of(chosen: Set) -> list[str]:
    ranks = chosen.ranks
    if chosen.on_host:
        return ["cpu:0"] * ranks
    share = min(100, 200 // ranks)
    kind = "gpu:0/mps" if has_gpu() and ranks > 1 else "gpu:0/whole" if has_gpu() else "cpu:0/cpu"
    return [f"{kind}:{i}of{ranks}@{share}%" for i in range(ranks)]


def run_set(name: str, calls: int, deadline: float) -> None:
    """Start the processes of a set, and print their lines."""
    from hocket.cluster.slices import Slices, changed
    from hocket.core.plan.device_id import device_ids
    from hocket.system.native import library
    from hocket.system.shared_memory import MemoryFile

    chosen, names = SETS[name], names_of(SETS[name])
    began, secret = time.monotonic(), secrets.token_hex(32)
    file = MemoryFile.create(CASES * chosen.ranks * REGION)
    with ExitStack() as stack:
        devices = device_ids(names)
        slices = stack.enter_context(closing(Slices(devices)))
        processes = []
        for rank, device in enumerate(devices):
            given = {
                "set_name": name, "rank": rank, "names": names, "fd": file.fd,
                "nbytes": file.nbytes, "calls": calls,
            }  # fmt: skip
            usual = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "HOCKET_REDUCE_SECONDS": "20"}
            environment = changed({**usual, **os.environ}, slices.env(device))
            flags = f"{environment.get('XLA_FLAGS', '')} {chosen.flags if has_gpu() else ''}"
            environment["XLA_FLAGS"] = flags.strip()
            if chosen.on_host:
                environment["JAX_PLATFORMS"] = "cpu"
            command = [sys.executable, os.path.abspath(__file__), "--rank", json.dumps(given)]
            process = subprocess.Popen(
                command, pass_fds=[file.fd], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert process.stdin
            process.stdin.write(f"{secret}\n")  # not in the command, which everybody can read
            process.stdin.flush()
            processes.append(process)
        outputs = wait_for(processes, deadline, lambda: close_all(library(), file, chosen.ranks))
    sums: dict[str, set[str]] = {}
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        printed = [line for line in output.splitlines() if line.startswith("{")]
        for line in map(json.loads, printed):
            if line["name"] == "sum":
                sums.setdefault(line["of"], set()).add(line["sum"])
            elif rank == 0 or line["name"].startswith("failed"):
                tell(line.pop("name"), set=name, rank=rank, **line)
        if process.returncode or not printed:
            tail = [x for x in output.splitlines() if not x.startswith("{")][-25:]
            tell("failed process", set=name, rank=rank, code=process.returncode, output=tail)
    for of, seen in sums.items():
        tell("same bits in all processes", set=name, of=of, value=len(seen) == 1)
    tell("set", set=name, seconds=round(time.monotonic() - began, 1))


def wait_for(
    processes: list[subprocess.Popen[str]], deadline: float, close: Any
) -> list[str]:  # fmt: skip
    """Return their output. Close the group before a kill: a busy client of MPS must not die."""
    with ThreadPoolExecutor(len(processes)) as pool:
        reading = [pool.submit(lambda p=p: p.communicate()[0]) for p in processes]
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            if any(p.poll() for p in processes):
                break
            time.sleep(0.05)
        time.sleep(0.5)
        if any(p.poll() is None for p in processes):
            close()
            time.sleep(5.0)
            for process in processes:
                if process.poll() is None:
                    tell("failed: a process had to be killed", pid=process.pid)
                    process.kill()
        return [future.result() for future in reading]


def close_all(library: Any, file: Any, ranks: int) -> None:
    for start in range(0, file.nbytes, ranks * REGION):
        library.hocket_average_close(file.address + start)


# --- one process ----------------------------------------------------------------------------------

REGION = 64 << 20
"""Shared memory of each process for one group; every case has its own."""
CASES = 8


def child(
    set_name: str, rank: int, names: list[str], fd: int, nbytes: int, calls: int
) -> None:  # fmt: skip
    try:
        Child(set_name, rank, names, fd, nbytes, calls).run()
    except Exception:  # noqa: BLE001 (the parent prints it)
        tell("failed", error=traceback.format_exc().splitlines()[-12:])
        sys.stdout.flush()
        sys.exit(1)


class Child:
    """One process of the group that averages."""

    def __init__(
        self, set_name: str, rank: int, names: list[str], fd: int, nbytes: int, calls: int
    ) -> None:
        import jax

        from hocket.core.plan.device_id import device_ids
        from hocket.runtime.averaging import Members
        from hocket.system.network import Network, set_network
        from hocket.system.shared_memory import MemoryFile

        set_network(Network(secret=bytes.fromhex(sys.stdin.readline().strip())))
        self.set, self.rank, self.calls = SETS[set_name], rank, calls
        self.members = Members(device_ids(names))
        self.file = MemoryFile.attach(fd, nbytes)
        self.regions = 0
        self.busy: dict[str, float] = {}
        """The GPU's counters during the last timing, in percent."""
        self.device = jax.local_devices()[0]
        self.hardware = {"hardware": self.device.device_kind, "jax": jax.__version__}
        tell("device", kind=self.device.device_kind, id=self.device.id, flags=self.set.flags)

    def space(self) -> Any:
        from hocket.runtime.averaging import Space

        each = len(self.members) * REGION
        made = Space(self.file, self.regions * each, each)
        self.regions += 1
        return made

    def run(self) -> None:
        from hocket.runtime.averaging.known import ways
        from hocket.system.native import Unavailable

        self.loop()
        for way in self.set.ways:
            for size in SIZES:
                space, xs = self.space(), self.vectors(size)
                why = "" if way not in ways() else ways()[way].why_not(self.members)
                if way not in ways() or (why and way != "nccl"):
                    tell("not measured", way=way, why=why or "there is no such way")
                    continue
                try:
                    began = time.perf_counter()
                    joined = self.join(way, space, [xs] * 6)  # XLA may copy a call
                except Unavailable as error:
                    tell("failed to join", way=way, error=str(error))
                    continue
                seconds = round(time.perf_counter() - began, 3)
                tell("joined", way=way, seconds=seconds, note=getattr(joined, "note", ""))
                self.check_means(way, joined, size)
                self.measure(way, joined, size)
        if "ipc" in self.set.ways and self.device.platform == "gpu":
            self.trees()
            self.ends("timeout")
            self.ends("close")

    def join(self, way: str, space: Any, sites: Any) -> Any:
        from hocket.runtime.averaging.known import ways
        from hocket.system.network.rendezvous import Rendezvous
        from hocket.system.shared_memory import pages

        count = len(self.members)
        nbytes = space.nbytes - pages(Rendezvous.nbytes(count))
        listener = ways()[way].listen(
            self.members, self.rank, sites, space._replace(nbytes=nbytes)
        )  # fmt: skip
        meeting = Rendezvous(space.file, space.offset + nbytes, count, self.rank)
        addresses = meeting.tell(pickle.dumps(listener.address))
        return listener.join([pickle.loads(address) for address in addresses], 0)

    def vectors(self, size: int) -> Any:
        import jax
        import jax.numpy as jnp

        return [jax.ShapeDtypeStruct((size,), jnp.float32)]

    def check_means(self, way: str, joined: Any, size: int) -> None:
        """Compare the means of random vectors, taken in one program, with NumPy's."""
        import jax
        import numpy as np

        epochs = EPOCHS if size < 100_000 else 20
        count = len(self.members)
        every = [
            np.random.default_rng((r, size)).standard_normal((epochs, size), np.float32)
            for r in range(count)
        ]
        program = jax.jit(
            lambda xs: jax.lax.scan(lambda c, x: (c, joined(x)[0]), 0, xs)[1]
        )  # fmt: skip
        means = np.asarray(program(every[self.rank]))
        joined.check()
        expected = every[0].copy()
        for other in every[1:]:
            expected += other
        expected /= np.float32(count)
        of = f"{way}, {size} floats"
        if not np.array_equal(means, expected):
            wrong = np.argwhere(means != expected)
            tell(
                "failed: other means than NumPy's", of=of, wrong=len(wrong),
                first=wrong[0].tolist(), worst=float(np.abs(means - expected).max()),
            )  # fmt: skip
        else:
            tell("means equal NumPy's bit for bit", of=of, epochs=epochs, counts=joined.counts())
        tell("sum", of=of, sum=hashlib.sha256(means.tobytes()).hexdigest())

    def measure(self, way: str, joined: Any, size: int) -> None:
        import jax.numpy as jnp

        calls = self.calls if size < 100_000 else max(20, self.calls // 4)
        seconds = self.timed(way, lambda x: joined(x)[0], jnp.ones(size), calls)
        joined.check()
        figures = {"ranks": len(self.members), "floats": size, "way": way}
        self.figure("us a call", seconds, **figures)

    def loop(self) -> None:
        import jax.numpy as jnp

        seconds = self.timed("loop", lambda x: x * 0.5, jnp.ones(SIZES[0]), self.calls)
        self.figure("us a turn of the loop", seconds, way="loop", floats=SIZES[0])

    def timed(self, way: str, fn: Any, x: Any, calls: int) -> list[float]:
        """Measure the microseconds of a call in a compiled loop, for each round."""
        import jax

        from hocket.cluster.nvidia.activity import SHORTEST, GpuActivity

        is_large = sum(y.size for y in jax.tree.leaves(x)) > 100_000
        rounds = max(5, round(1e6 * SECONDS / calls / TYPICAL[way][is_large]))
        run = jax.jit(lambda x: jax.lax.scan(lambda c, _: (fn(c), None), x, None, calls)[0])
        x = jax.block_until_ready(run(x))
        times = []
        time.sleep(2 * SHORTEST)  # the counters lag behind
        with GpuActivity() as activity:
            for _ in range(rounds):
                start = time.perf_counter()
                x = jax.block_until_ready(run(x))
                times.append(1e6 * (time.perf_counter() - start) / calls)
        self.busy = {name: round(value, 1) for name, value in activity.report().items()}
        return times

    def figure(self, name: str, times: list[float], **more: Any) -> None:
        tell(
            name, value=round(statistics.median(times), 1), least=round(min(times), 1),
            most=round(max(times), 1), **more, **self.busy, **self.hardware,
        )  # fmt: skip

    def trees(self) -> None:
        """Check several arrays in one call, and a function that is called twice."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        shapes = [(24, 128), (128,), (128, 128), (128,), (128, 8), (8,), ()]
        sites = [[jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]] * 4
        joined = self.join("ipc", self.space(), sites)
        inner = jax.jit(lambda *xs: joined(*xs))
        base = [np.random.default_rng(7).standard_normal(s).astype(np.float32) for s in shapes]

        @jax.jit
        def twice(xs: Any) -> Any:
            return inner(*[x + self.rank for x in xs]), inner(*[x - self.rank for x in xs])

        count = len(self.members)
        half = np.float32(sum(range(count)) / count)
        for _ in range(3):
            more, less = twice(base)
            for x, a, b in zip(base, more, less, strict=True):
                np.testing.assert_allclose(np.asarray(a), x + half, atol=1e-5)
                np.testing.assert_allclose(np.asarray(b), x - half, atol=1e-5)
        joined.check()
        tell("trees, and two calls of one function", counts=joined.counts())
        ones = [jnp.ones(s) for s in shapes]
        seconds = self.timed("ipc", lambda xs: joined(*xs), ones, self.calls)
        self.figure("us a call", seconds, way="ipc, 7 arrays", floats=20_745, ranks=count)

    def ends(self, how: str) -> None:
        """Check how a wait ends: rank 0 averages once more, and nobody else does."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        from hocket.runtime.averaging.ways.ipc import WithinGpu

        limit = 1.5 if how == "timeout" else 30.0
        joined = WithinGpu(
            self.space(), len(self.members), self.rank, [self.vectors(1000)] * 2,
            self.device.local_hardware_id, wait_seconds=limit,
        )  # fmt: skip
        program = jax.jit(lambda x: joined(x)[0])
        jax.block_until_ready(program(jnp.ones(1000)))
        joined.check()
        start = time.perf_counter()
        if self.rank:
            if how == "close" and self.rank == 1:
                time.sleep(1.0)
                joined.close()
            time.sleep(3.0)  # so that nobody leaves while another still waits on the GPU
            return
        mean = np.asarray(program(jnp.ones(1000)))
        seconds = round(time.perf_counter() - start, 2)
        try:
            joined.check()
            error = "failed: no error"
        except RuntimeError as raised:
            error = str(raised)
        try:
            jax.block_until_ready(program(jnp.ones(1000)))
            after = "failed: no error"
        except Exception as raised:  # noqa: BLE001
            after = str(raised).splitlines()[0]
        nan = bool(np.isnan(mean).all())
        tell(f"{how} ends the wait", seconds=seconds, error=error, all_nan=nan, next_call=after)
        time.sleep(max(0.0, 3.5 - seconds))


if __name__ == "__main__":
    main()
