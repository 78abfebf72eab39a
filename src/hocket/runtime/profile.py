"""Where the time of a compiled program goes, by role: every operation knows its fragment."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

T = TypeVar("T")

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_ROLE = re.compile(r"jit\(hocket\.(\w+)\.")


class Event(NamedTuple):
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
        with jax.profiler.trace(folder, profiler_options=options):
            result = work()
        files = list(Path(folder).rglob("*.xplane.pb"))
        roles = roles_of(text)
        lines = [line for file in files for line in _lines(file, roles)]
    return result, shares(lines, roles)


def shares(lines: Iterable[list[Event]], roles: dict[str, str]) -> dict[str, float]:
    """The part of the operations' time that each role took; they add up to 1."""
    spent: dict[str, float] = {}
    for line in lines:
        operations = [event for event in line if event.name in roles]
        for name, nanoseconds in _self_times(operations):
            spent[roles[name]] = spent.get(roles[name], 0.0) + nanoseconds
    total = sum(spent.values())
    return {role: time / total for role, time in sorted(spent.items())} if total else {}


def roles_of(text: str) -> dict[str, str]:
    """The role of each instruction of a compiled program, by its name and by its kernel's."""
    found: dict[str, str] = {}
    for names in _computations(text):
        known = Counter(role for role in names.values() if role)
        usual = known.most_common(1)[0][0] if known else ""
        found |= {name: role or usual for name, role in names.items()}
    found = {name: role for name, role in found.items() if role}
    return found | {re.sub(r"[.\-]", "_", name): role for name, role in found.items()}


def _computations(text: str) -> Iterator[dict[str, str]]:
    """Of each computation, its instructions and their roles; empty where the metadata has none."""
    names: dict[str, str] = {}
    for line in text.splitlines():
        if _COMPUTATION.match(line):
            yield names
            names = {}
        elif found := _INSTRUCTION.match(line):
            roles = _ROLE.findall(line)
            names[found[1]] = roles[-1] if roles else ""
    yield names


def _lines(file: Path, roles: Container[str]) -> Iterator[list[Event]]:
    """The operations that ran, by thread of a CPU or stream of a GPU."""
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            # A device's plane tells the same operations again, summed up in other ways.
            if on_device and not line.name.startswith("Stream"):
                continue
            name = partial(_of_kernel, roles=roles) if on_device else (lambda event: event.name)
            yield [Event(name(e), e.start_ns, e.start_ns + e.duration_ns) for e in line.events]


def _of_kernel(kernel: Any, roles: Container[str]) -> str:
    """A kernel's instruction: mostly its own name; a library's kernel says whose it is."""
    return kernel.name if kernel.name in roles else str(dict(kernel.stats).get("hlo_op", ""))


def _self_times(line: list[Event]) -> Iterator[tuple[str, float]]:
    """Each operation's time without that of the operations inside it: a loop holds its body."""
    open_: list[tuple[Event, list[float]]] = []

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
