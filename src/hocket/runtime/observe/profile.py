"""The share of a compiled program's time that each role takes.

Every operation has the name of its fragment in its metadata, which survives compilation.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from hocket.core.program.fragment import ROLES

T = TypeVar("T")

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_CALLED = re.compile(r"calls=%?([\w.\-]+)")
_ROLE = re.compile(r"jit\(hocket\.(\w+)\.")
_OURS = re.compile(rf"^dense_.*_({'|'.join(ROLES)})$")  # our kernels, whose names end in a role


class TraceEvent(NamedTuple):
    """One operation in one line of the profile, with its start and end in nanoseconds."""

    name: str
    start: float
    end: float


def profiled(work: Callable[[], T], text: str) -> tuple[T, dict[str, float]]:
    """Do some work under jax's profiler. Return its result, and each role's share of the time.

    `text` is the text of the compiled program. An operation has the role that its metadata names.
    If it names none, as for a copy, it has the most frequent role of its computation.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # do not trace Python calls: that is slow and not needed
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError:  # the user is already profiling, and there can be only one profile
            return work(), {}
        try:
            result = work()
        finally:
            written = _stop_trace()
        if not written:
            return result, {}
        files = list(Path(folder).rglob("*.xplane.pb"))
        roles = roles_of(text)
        times = [time for file in files for time in _times(file, roles)]
    return result, shares(times, roles)


def _stop_trace() -> bool:
    """End the profile. Return False if its file could not be written; a run goes on without it."""
    try:
        jax.profiler.stop_trace()
    except (OSError, RuntimeError):  # the disk is full, or a limit forbids such a large file
        return False
    return True


def shares(times: Iterable[tuple[str, float]], roles: dict[str, str]) -> dict[str, float]:
    """Return each role's share of the time of all operations that have a role."""
    spent: dict[str, float] = {}
    for name, nanoseconds in times:
        ours = _OURS.search(name)
        if role := ours[1] if ours else roles.get(name):
            spent[role] = spent.get(role, 0.0) + nanoseconds
    total = sum(spent.values())
    return {role: time / total for role, time in sorted(spent.items())} if total else {}


def roles_of(text: str) -> dict[str, str]:
    """Return the role of each instruction of a compiled program.

    The keys are the names of the instructions and the names of their kernels. A fusion has the most
    frequent role of its instructions.
    """
    bodies = _computations(text)
    usual = {body: _usual(rows) for body, rows in bodies.items()}
    roles = {
        row.name: role
        for body, rows in bodies.items()
        for row in rows
        if (role := usual.get(row.called) or row.role or usual[body])
    }
    return {re.sub(r"[.\-]", "_", name): role for name, role in roles.items()} | roles


class Instruction(NamedTuple):
    name: str
    role: str
    """The role in its metadata; empty if there is none."""
    called: str
    """The computation that a fusion calls; empty for other instructions."""


def _computations(text: str) -> dict[str, list[Instruction]]:
    """Return the instructions of each computation."""
    bodies: dict[str, list[Instruction]] = {}
    rows: list[Instruction] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            rows = bodies.setdefault(head[1], [])
        elif name := _INSTRUCTION.match(line):
            # If a fragment is called inside another, the last role is that of the inner one.
            roles, called = _ROLE.findall(line), _CALLED.search(line)
            rows.append(
                Instruction(name[1], roles[-1] if roles else "", called[1] if called else "")
            )
    return bodies


def _usual(rows: list[Instruction]) -> str:
    """Return the most frequent role of some instructions, or "" if none has a role."""
    roles = Counter(row.role for row in rows if row.role)
    return roles.most_common(1)[0][0] if roles else ""


def _times(file: Path, roles: Container[str]) -> Iterator[tuple[str, float]]:
    """Yield each operation on a thread of a CPU or a stream of a GPU, and the time it took."""
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            if not plane.name.startswith("/device:"):
                ran = [e for e in line.events if e.name in roles]
                events = (TraceEvent(e.name, e.start_ns, e.start_ns + e.duration_ns) for e in ran)
                yield from self_times(events)
            # Skip the other lines of a device: they sum up the same kernels in other ways.
            elif line.name.startswith("Stream"):
                yield from ((_of_kernel(e, roles), e.duration_ns) for e in line.events)


def _of_kernel(kernel: Any, roles: Container[str]) -> str:
    """Return the name of the instruction that a kernel carries out, or else the kernel's own name.

    A kernel in a command buffer has only its own name, because the profile does not say which
    instruction it carries out. Similar instructions share a kernel that is named after one of them,
    which is good enough to see what takes long.
    """
    operation = str(dict(kernel.stats).get("hlo_op", ""))
    known = operation in roles and not operation.startswith("command_buffer")
    return operation if known else kernel.name


def self_times(line: Iterable[TraceEvent]) -> Iterator[tuple[str, float]]:
    """Yield each operation with its own time, without that of operations inside it."""
    open_: list[tuple[TraceEvent, list[float]]] = []

    def close() -> tuple[str, float]:
        event, inside = open_.pop()
        return event.name, event.end - event.start - sum(inside)

    for event in sorted(line, key=lambda e: (e.start, -e.end)):
        while open_ and open_[-1][0].end <= event.start:
            yield close()
        if open_:
            open_[-1][1].append(event.end - event.start)
        open_.append((event, []))
    while open_:
        yield close()
