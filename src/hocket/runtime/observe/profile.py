"""Where the time of a compiled program goes, by role: every operation knows its fragment."""

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
_OURS = re.compile(rf"^dense_.*_({'|'.join(ROLES)})$")  # kernels that say their role themselves


class TraceEvent(NamedTuple):
    """One operation of the program on one line of the profile; times in nanoseconds."""

    name: str
    start: float
    end: float


def profiled(work: Callable[[], T], text: str) -> tuple[T, dict[str, float]]:
    """Do some work under jax's profiler: its result, and the part of the time each role took.

    `text` is the compiled program. An operation belongs to the fragment whose name its metadata
    has; one without (a copy, glue) to the role that most of its computation belongs to.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # every Python call: slow, and not asked for
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError:  # the user profiles the whole run already
            return work(), {}
        try:
            result = work()
        finally:
            jax.profiler.stop_trace()
        files = list(Path(folder).rglob("*.xplane.pb"))
        roles = roles_of(text)
        times = [time for file in files for time in _times(file, roles)]
    return result, shares(times, roles)


def shares(times: Iterable[tuple[str, float]], roles: dict[str, str]) -> dict[str, float]:
    """The part of the operations' time that each role took; they add up to 1."""
    spent: dict[str, float] = {}
    for name, nanoseconds in times:
        ours = _OURS.search(name)
        if role := ours[1] if ours else roles.get(name):
            spent[role] = spent.get(role, 0.0) + nanoseconds
    total = sum(spent.values())
    return {role: time / total for role, time in sorted(spent.items())} if total else {}


def roles_of(text: str) -> dict[str, str]:
    """The role of each instruction of a compiled program, by its name and by its kernel's.

    Of a fusion, the role of most of what was fused into it.
    """
    inside = {body: _usual(rows) for body, rows in _computations(text).items()}
    found: dict[str, str] = {}
    for body, rows in _computations(text).items():
        for name, role, called in rows:
            found[name] = inside.get(called) or role or inside[body]
    found = {name: role for name, role in found.items() if role}
    return {re.sub(r"[.\-]", "_", name): role for name, role in found.items()} | found


class Instruction(NamedTuple):
    name: str
    role: str
    """Empty where the metadata has none."""
    called: str
    """The computation of a fusion."""


def _computations(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each computation."""
    bodies: dict[str, list[Instruction]] = {}
    rows: list[Instruction] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            rows = bodies.setdefault(head[1], [])
        elif found := _INSTRUCTION.match(line):
            roles, called = _ROLE.findall(line), _CALLED.search(line)
            rows.append(
                Instruction(found[1], roles[-1] if roles else "", called[1] if called else "")
            )
    return bodies


def _usual(rows: list[Instruction]) -> str:
    """The role that most of these have."""
    roles = Counter(row.role for row in rows if row.role)
    return roles.most_common(1)[0][0] if roles else ""


def _times(file: Path, roles: Container[str]) -> Iterator[tuple[str, float]]:
    """The operations that ran, by thread of a CPU or stream of a GPU, and their nanoseconds."""
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            if not plane.name.startswith("/device:"):
                ran = [e for e in line.events if e.name in roles]
                events = (TraceEvent(e.name, e.start_ns, e.start_ns + e.duration_ns) for e in ran)
                yield from self_times(events)
            # A device's plane tells the same kernels again, summed up in other ways.
            elif line.name.startswith("Stream"):
                yield from ((_of_kernel(e, roles), e.duration_ns) for e in line.events)


def _of_kernel(kernel: Any, roles: Container[str]) -> str:
    """A kernel's instruction. In a command buffer it says only that, and its name must do: good
    enough to see what is large, as instructions that are alike share one kernel.
    """
    operation = str(dict(kernel.stats).get("hlo_op", ""))
    known = operation in roles and not operation.startswith("command_buffer")
    return operation if known else kernel.name


def self_times(line: Iterable[TraceEvent]) -> Iterator[tuple[str, float]]:
    """Each operation's time without that of the operations inside it: a loop holds its body."""
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
