"""Algorithms that fail on purpose, and functions that look at processes through /proc."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.experimental import io_callback

import hocket.core.plan.data
from hocket import Place, Plan
from hocket.core.projection.instructions import Projection, Send
from hocket.core.projection.project import project
from tests.toys import Toy

SPLIT = (Place("actor", run=("env", "act")), Place("learner", run=("learn",)))


def two(graph: Any, cluster: Any) -> Plan:
    """Place an actor and a learner; a strategy for tests."""
    return Plan(graph, SPLIT)


_calls = itertools.count(1)


@dataclass(frozen=True)
class Faulty(Toy):
    """A Toy whose environment, on the place `actor`, fails in the second iteration."""

    fault: str = "sleep"
    """How it fails: `sleep`, `exit` or `raise`."""
    seconds: float = 300.0
    ballast: bytes = b""
    """Padding, so large that it cannot be sent to a worker before the worker listens."""

    def noise(self, x: Any, keys: Any) -> Any:
        noise = Toy.noise(self, x, keys)
        return io_callback(self.happen, jax.ShapeDtypeStruct(noise.shape, noise.dtype), noise)

    def happen(self, noise: Any) -> Any:
        if next(_calls) == self.length + 1:
            match self.fault:
                case "sleep":
                    time.sleep(self.seconds)
                case "exit":
                    # As environments may, it forks a child, which holds its connections open.
                    child = os.fork()
                    if not child:
                        time.sleep(self.seconds)
                        os._exit(0)
                    print(f"the actor leaves {child} behind, at {time.monotonic()}")  # noqa: T201
                    os._exit(3)
                case "raise":
                    raise RuntimeError("the environment is on fire")
        return noise


@dataclass(frozen=True)
class Fickle(Toy):
    """A Toy that traces another program in every process but its home."""

    home: int = 0

    def noise(self, x: Any, keys: Any) -> Any:
        noise = Toy.noise(self, x, keys)
        return noise if os.getpid() == self.home else noise + 1.0


class Misprojected(Toy):
    """A Toy that, once unpickled, breaks projection in that process: parameters are never sent."""

    def __reduce__(self) -> Any:
        return _forget, ()


def _forget() -> Toy:
    hocket.core.plan.data.project = without_parameters
    return Misprojected()


def without_parameters(*arguments: Any) -> Projection:
    """Project as usual, but leave out the learner's first message."""
    made = project(*arguments)
    assert isinstance(made.programs["learner"][0], Send)
    return replace(made, programs={**made.programs, "learner": made.programs["learner"][1:]})


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `condition` returns something true, and return it."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
    return result


def workers(parent: int | None = None) -> dict[str, int]:
    """Return the worker processes that a process has started, by the names of their instances."""
    return {
        words[-1]: pid
        for pid in children(parent)
        if "hocket.runtime.launch.process" in (words := _command(pid))
    }


def children(parent: int | None = None) -> list[int]:
    """Return the children of a process, including those that have ended but are not yet reaped."""
    mine = os.getpid() if parent is None else parent
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return sorted(pid for pid in pids if (about := _about(pid)) and int(about[1]) == mine)


def is_gone(pid: int) -> bool:
    """Return True if a process has ended, even if its parent has not reaped it yet."""
    about = _about(pid)
    return not about or about[0] == "Z"


def state_of(pid: int) -> str:
    """Return the state of a process, such as `T` while it is suspended; "" if there is none."""
    return about[0] if (about := _about(pid)) else ""


def all_gone(pids: Mapping[str, int]) -> bool:
    return all(map(is_gone, pids.values()))


def cpu_seconds(pid: int) -> float:
    return int(_about(pid)[11]) / os.sysconf("SC_CLK_TCK")


def _about(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def left_behind() -> set[str]:
    """Return the processes and the shared memory that a run has left behind."""
    gc.collect()  # errors keep the frames that they passed through alive
    left = {f"process {pid}" for pid in children()}
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            continue
        if target.startswith("/memfd:hocket"):
            left.add(f"{path.name}: {target}")
    names = (path.name for path in Path("/dev/shm").iterdir())
    return left | {name for name in names if name.startswith(("hocket", "psm_", "sem."))}
