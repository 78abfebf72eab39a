"""Checks of slices on a real GPU, without pytest: `python tests/cluster/gpu_checks.py [CHECK ...]`.

Each check runs in its own process, which prints what it found and ends with code 0 or an error.
"""

# ruff: noqa: T201 (a program: it says what it finds)

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from hocket.cluster.nvidia import mps, nvml  # noqa: E402
from hocket.cluster.nvidia.cuda import gpu_uuid  # noqa: E402

SOON = 30.0
"""Seconds within which all of it must be gone."""
FREE = 512 * 2**20
"""Bytes that a GPU may hold more afterwards: contexts of this process's own."""


def first_gpu() -> str:
    """The UUID of this process's first GPU."""
    uuid = gpu_uuid(0)
    assert uuid, "there is no GPU"
    return uuid


def unavailable() -> str:
    """The reason why the checks cannot run here; "" if they can."""
    return mps.missing() if gpu_uuid(0) else "there is no GPU."


def main(names: list[str]) -> None:
    """Run these checks, or all of them. The exit code is 0 if all succeed."""
    if why := unavailable():
        sys.exit(f"nothing to check: {why}")
    wrong: list[str] = []
    for name in names or CHECKS:
        begin = time.monotonic()
        code, said = run(name)
        print(said)
        print(f"--- {name}: {'ok' if code == 0 else f'FAILED ({code})'}, ", end="")
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
        wrong += [name] if code else []
    sys.exit(f"FAILED: {', '.join(wrong)}" if wrong else 0)


def run(name: str) -> tuple[int, str]:
    """Run one check in its own process on the GPU, and return its exit code and output."""
    process = subprocess.run(
        [sys.executable, __file__, "--here", name], env=environment(), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400, check=False,
    )  # fmt: skip
    return process.returncode, process.stdout.strip()


def environment() -> dict[str, str]:
    """A user's environment, since that of the tests only allows simulated CPUs."""
    hidden = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_NUMPY_RANK_PROMOTION")
    mine = {name: x for name, x in os.environ.items() if name not in hidden}
    return {**mine, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}


def attach() -> None:
    """Four processes are clients of our server, see their shares, and leave nothing behind."""
    from hocket.cluster.nvidia.activity import GpuActivity

    with nothing_left():
        reports, report = training(4)
        slices = report.executor.crew.slices
        for name, seen in slices.seen.items():
            print(name, json.dumps(seen))
        assert len(slices.seen) == 4
        assert all(seen["verified"] for seen in slices.seen.values())
        full = _full()
        for seen in slices.seen.values():
            part = seen["multiprocessors"] / full
            assert abs(part - 0.5) < 0.03, f"50 % was asked for, and it sees {part:.0%} of {full}"
        daemon = slices._opened["mps"]._daemon
        clients, pids = daemon.clients(), [seen["pid"] for seen in slices.seen.values()]
        print("servers", daemon.servers(), "clients", clients, "processes", pids)
        assert len(clients) == 4, "each of them must be a client"
        print("numbered alike:", sorted(clients) == sorted(pids))
        with GpuActivity("gpu:0") as activity:
            for _ in range(4):
                report = next(reports)
        print("activity over", f"{activity.seconds:.1f} s:", activity)
        print("memory:", nvml.gpu(first_gpu()))
        assert not activity.why, activity.why
        assert report.executor.plan.places[0].replicas == 4
        reports.close()


def shares() -> None:
    """A process gets the share that was requested, here about a quarter."""
    with nothing_left():
        reports, report = training(2, ",share=25")
        full = _full()
        for name, seen in report.executor.crew.slices.seen.items():
            print(name, seen["multiprocessors"], "of", full, "multiprocessors")
            assert abs(seen["multiprocessors"] / full - 0.25) < 0.03
        reports.close()


def taking_turns() -> None:
    """Without MPS the numbers are the same, and each process sees the whole GPU."""
    with nothing_left():
        reports, report = training(2, ",cut=shared")
        for name, seen in report.executor.crew.slices.seen.items():
            print(name, json.dumps(seen))
            assert seen["verified"] and seen["multiprocessors"] == _full()
        reports.close()


def killed_worker() -> None:
    """If one worker is killed, the run says which, and leaves nothing behind."""
    from hocket.runtime.launch.watch import InstanceError
    from tests.faults import is_gone, workers

    with nothing_left():
        reports, _ = training(3)
        pids = workers()
        os.kill(pids["slice/1"], signal.SIGKILL)
        begin = time.monotonic()
        said = "it went on without one of them"
        try:
            list(reports)
        except InstanceError as error:
            said = str(error)
        print(f"after {time.monotonic() - begin:.1f} s: {said}")
        assert said.startswith("the instance `slice/1` failed: process")
        assert all(map(is_gone, pids.values()))


def killed_parent() -> None:
    """If the process that started the workers is killed, nothing stays behind, either."""
    with nothing_left():
        parent = subprocess.Popen(
            [sys.executable, __file__, "--here", "_parent"], env=environment(), text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert parent.stdout is not None
        said = next(line for line in parent.stdout if line.startswith("{"))
        print("started", said.strip())
        assert ours(), "there must be something to leave behind"
        parent.kill()
        parent.wait()


def _parent() -> None:
    reports, report = training(2)
    print(json.dumps({str(name): s["pid"] for name, s in report.executor.crew.slices.seen.items()}))
    list(reports)


def somebody_elses() -> None:
    """A daemon that somebody else had started still runs afterwards."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    env = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder),
        "CUDA_MPS_LOG_DIRECTORY": str(folder),
    }
    control = mps.find_program(mps.CONTROL) or mps.CONTROL
    subprocess.run([control, "-d"], env=env, check=True, stdin=subprocess.DEVNULL, timeout=20)
    try:
        with nothing_left():
            reports, _ = training(2)
            reports.close()
        for command in ("get_default_active_thread_percentage", "quit"):
            done = subprocess.run(
                [control], input=f"{command}\n", env=env, text=True, capture_output=True,
                timeout=20, check=False,
            )  # fmt: skip
            print(command, "->", done.returncode, done.stdout.strip())
            assert done.returncode == 0, done
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=False)


def messages() -> None:
    """Every kind of array arrives as it was sent, through fewer slots than there are messages."""
    import jax
    import numpy as np

    with nothing_left():
        file, connect = _here(sends=False)
        inbox = connect()
        sender = subprocess.Popen(
            [sys.executable, __file__, "--here", "_sender"], pass_fds=[file.fd],
            env={**environment(), "ARENA": str(file.fd)}, stdin=subprocess.PIPE,
        )  # fmt: skip
        for k in range(5):
            for sent, received in zip(_message(k), inbox.receive(), strict=True):
                assert sent.dtype == received.dtype and received.devices() == {jax.devices()[0]}
                same = jax.tree.map(_numbers, (sent, received))
                assert np.array_equal(*same), f"{sent.dtype}: sent {same[0]}, found {same[1]}"
        sender.communicate(timeout=60)
        assert sender.returncode == 0


def _sender() -> None:
    _, connect = _here(sends=True, fd=int(os.environ["ARENA"]))
    outbox = connect()
    for k in range(5):
        outbox.send(_message(k))
    sys.stdin.read()  # keep the memory until the other process has read it


def _here(*, sends: bool, fd: int | None = None) -> tuple[Any, Any]:
    """The memory of a link, made here or elsewhere, and the function that connects our end."""
    import jax

    from hocket.runtime.channels import Here
    from hocket.runtime.channels.transports.one_gpu import TRANSPORT
    from hocket.system.shared_memory import MemoryFile, Space

    room = TRANSPORT.room(_link())
    file = MemoryFile.create(room) if fd is None else MemoryFile.attach(fd, room)
    here = Here(sends, (jax.devices()[0],), space=Space(file, 0, room))
    return file, lambda: TRANSPORT.connect(_link(), None, here, 1)


def _link() -> Any:
    from types import SimpleNamespace

    import jax

    from hocket.runtime.channels.links import Link

    specs = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in _message(0))
    return Link(cast("Any", SimpleNamespace(source="a", target="b")), 0, 0, (), specs, 2)


def _message(k: int) -> list[Any]:
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(k), (1000, 37))
    kinds = (jnp.float32, jnp.bfloat16, jnp.int8, jnp.bool_, jnp.complex64)
    return [
        *(x.astype(kind) for kind in kinds),
        x[:0],
        x[0, 0],
        jax.random.split(jax.random.key(k)),
    ]


def _numbers(x: Any) -> Any:
    from hocket.runtime.channels.host_arrays import to_host

    return to_host(x)


def direct() -> None:
    """Messages that stay on the GPU give the same numbers as those through the host."""
    import hocket
    from hocket.testing import difference

    words = "sliced:slices=3,dedicated=true,lag=1,direct="
    with nothing_left():
        states = [
            hocket.run(_ppo(), distribute=f"{words}{way}", iterations=6).state
            for way in ("true", "false")
        ]
        print("largest difference:", largest := difference(*states))
        assert largest == 0.0
        free = hocket.run(_ppo(), distribute="sliced:slices=3,dedicated=true", iterations=6)
        assert (free.metrics["sample_age"] <= 2).all()


def missing() -> None:
    """Without NVIDIA's programs, a run uses the whole GPU, and the plan says so."""
    import hocket

    os.environ["PATH"], mps.FOLDERS = "", ("/nonexistent",)
    plan = hocket.plan(_ppo(), distribute="sliced:slices=4")
    print(plan)
    assert "gpu:0 is used whole, not as 4 slices: `nvidia-cuda-mps-control`" in str(plan)


def training(slices: int, more: str = "") -> tuple[Any, Any]:
    """A run on some slices of the first GPU, and its first report."""
    import hocket

    reports = hocket.iterate(_ppo(), distribute=f"sliced:slices={slices}{more}", iterations=10**6)
    return reports, next(reports)


def _ppo() -> Any:
    import hocket
    from hocket.algorithms import PPO

    return PPO(env=hocket.make("CartPole-v1"), num_envs=96, length=32, minibatches=2, epochs=1)


def _full() -> int:
    from hocket.cluster.nvidia.cuda import multiprocessors

    count = multiprocessors(0)
    assert count
    return count


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that no MPS process, no folder and no GPU memory is left."""
    import jax

    jax.block_until_ready(jax.numpy.ones(8) + 1)  # create this process's own context first
    uuid = first_gpu()
    before, used = ours(), nvml.gpu(uuid).used
    yield
    deadline = time.monotonic() + SOON
    while (left := ours() - before) or nvml.gpu(uuid).used > used + FREE:
        now = nvml.gpu(uuid).used
        assert time.monotonic() < deadline, f"left: {left}, {now - used:,} bytes of the GPU"
        time.sleep(0.1)
    took = SOON - (deadline - time.monotonic())
    print(f"all gone after {took:.1f} s; the GPU holds {nvml.gpu(uuid).used - used:,} bytes more")


def ours() -> set[str]:
    """The folders, daemons, servers, watchers and workers of our slices."""
    names = {str(path) for path in mps.SHORT.glob("hocket-mps-*")}
    marks = (b"nvidia-cuda-mps", b"mps_watch", b"hocket.runtime.launch.process")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if any(mark in command for mark in marks):
            names.add(f"{path.parent.name} {command.decode(errors='replace')[:80]}")
    return names


CHECKS: dict[str, Callable[[], None]] = {
    "attach": attach,
    "shares": shares,
    "taking_turns": taking_turns,
    "killed_worker": killed_worker,
    "killed_parent": killed_parent,
    "somebody_elses": somebody_elses,
    "messages": messages,
    "direct": direct,
    "missing": missing,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        {**CHECKS, "_parent": _parent, "_sender": _sender}[sys.argv[2]]()
    else:
        main(sys.argv[1:])
