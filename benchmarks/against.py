"""Compare the speed of this checkout with another one, for a change that claims to cost nothing.

    git worktree add ../before COMMIT              # the commit before the change
    for at in ../before .; do                      # libraries beside the sources of both
        cmake -S $at -B $at/build -DPython_EXECUTABLE=$(which python) && cmake --build $at/build
    done
    python benchmarks/against.py ../before         # all, about ten minutes on two quiet cores

One interpreter then serves both sides, each with its own PYTHONPATH. It needs what hocket needs,
EnvPool and `nanobind`. Or install each checkout into an environment of its own, both in the same
way, and name the interpreters with `--python` and `--old-python`: a checkout without libraries
beside its sources is imported from its interpreter's packages. A package that differs from its
checkout is refused, and so are different versions of Python or JAX.

Each workload is set up by three processes, two of the old checkout and one of the new. They take
turns in an order drawn anew each time; the script checks that those that wait are idle. One turn of
all three gives a pair new/old and a pair old/old; the latter shows what the machine alone does to a
ratio. Pairs are added until half the 95 % interval of the median ratio new/old (bootstrap) is below
`--precision`, or there are `--pairs`. The three are started afresh several times, because a process
may be a percent faster than its twin for as long as it lives. Where the start of a process is
measured, each measurement starts one.

A ratio above 1 means that this checkout is faster. It passes from 0.97 on; if the interval stays
wider than `--precision`, its lower end must also be at least 0.93. Prints one JSON line per figure,
then a table, and exits with 1 if a figure does not pass. `same` is the ratio old/old; `others` is
the number of cores that the rest of the machine used meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from against_work import SECTIONS, Crossings, Start, Training
from split import Meter, asked

PASSES, LOWEST = 0.97, 0.93
LEAST = 18
"""The fewest pairs for a verdict: the bootstrap interval of fewer is too narrow."""
RESAMPLES = 2_000
IDLE_CORES = 0.1
"""How many cores the processes that wait for their turn may use together."""
SIDES = ("old", "again", "new")
HERE = Path(__file__).resolve().parents[1]

Ask = Callable[[], Mapping[str, float]]
"""One measurement: seconds by figure."""
Rows = Iterator[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long a turn takes")
    parser.add_argument("--pairs", type=int, default=60, help="the most pairs of a figure")
    parser.add_argument("--precision", type=float, default=0.02, help="half of the interval")
    parser.add_argument("--starts", type=int, default=3, help="how often processes start afresh")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the order")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of this checkout")
    parser.add_argument("--old-python", help="the interpreter of the other checkout, if it has one")
    options = parser.parse_args()
    old = find_side(options.old.resolve(), options.old_python or options.python)
    new = find_side(HERE, options.python)
    if old.versions != new.versions:
        sys.exit(f"{old.versions} there, {new.versions} here: they must be the same.")
    print(json.dumps({
        "hardware": hardware(), **new.versions, "old": old.commit, "new": new.commit,
        "seconds": options.seconds, "most_pairs": options.pairs, "precision": options.precision,
    }), flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # One cache per process, so that what it finds compiled never depends on the others.
        each = zip(SIDES, (old, old, new), strict=True)
        sides = {name: replace(side, cache=f"{folder}/{name}") for name, side in each}
        rows = list(measured(options, sides))
    print(table(rows))
    sys.exit(0 if all(row["passes"] for row in rows) else 1)


def measured(options: argparse.Namespace, sides: Mapping[str, Side]) -> Rows:
    """Measure the sections that were asked for, and print each figure as it comes."""
    begun, judge = time.monotonic(), Judge(options)
    for section in options.sections:
        for index, work in enumerate(SECTIONS[section]):
            say(f"{time.monotonic() - begun:4.0f} s  {section}: {work.name}")
            if isinstance(work, Start):
                rows = starts(work, sides, judge)
            else:
                rows = turns(work, sides, judge, [section, str(index)])
            for row in rows:
                print(json.dumps({**row, "against": sides["old"].commit}), flush=True)
                yield row
    say(f"{time.monotonic() - begun:4.0f} s  done")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else os.uname().machine}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format all figures for people."""
    lines = [("", "old", "new", "", "new/old", "95 %", "old/old", "95 %", "pairs", "")]
    for row in rows:
        ends = [f"{low:.3f} to {high:.3f}" for low, high in (row["interval"], row["same_interval"])]
        lines.append((
            row["name"], f"{row['old']:,}", f"{row['value']:,}", row["unit"],
            f"{row['ratio']:.3f}", ends[0], f"{row['same']:.3f}", ends[1],
            str(row["pairs"]), "passes" if row["passes"] else "FAILS",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


# The two checkouts


@dataclass(frozen=True)
class Side:
    """A checkout, and how to start a process of it."""

    checkout: Path
    python: str
    path: str
    """The PYTHONPATH of its processes; empty if hocket is installed in its interpreter."""
    commit: str
    versions: Mapping[str, str] = field(default_factory=dict)
    cache: str = ""
    """A folder for compiled programs, so that they are compiled only at the first start."""

    def environment(self, flags: str = "") -> dict[str, str]:
        return {
            "PYTHONPATH": self.path, "XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": self.cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }  # fmt: skip

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(
                [self.python, "-c", script], cwd=folder, text=True, capture_output=True,
                check=False, env={**os.environ, **self.environment()},
            )  # fmt: skip

    def entry_point(self) -> list[str]:
        """Return the module and the function of the command `hocket`."""
        words = tomllib.loads((self.checkout / "pyproject.toml").read_text())
        return words["project"]["scripts"]["hocket"].split(":")


PREPARE = f"The top of {__file__} says how to prepare a checkout."
PROBE = """
import json, platform, hocket, jax
print(json.dumps([hocket.__file__, {"python": platform.python_version(), "jax": jax.__version__}]))
"""


def find_side(checkout: Path, python: str) -> Side:
    source = checkout / "src" / "hocket"
    if not source.is_dir():
        sys.exit(f"{checkout} is not a checkout: there is no {source}.")
    path = str(source.parent) if any(source.rglob("*.so")) else ""
    side = Side(checkout, python, path, commit_of(checkout))
    done = side.run(PROBE)
    if done.returncode:
        sys.exit(f"{python} cannot import hocket of {checkout}:\n{done.stderr}{PREPARE}")
    home, versions = json.loads(done.stdout)
    for file in source.rglob("*.py"):
        twin = Path(home).parent / file.relative_to(source)
        if not twin.is_file() or twin.read_bytes() != file.read_bytes():
            sys.exit(f"{python} imports {home}, and there {twin} is not {file}.\n{PREPARE}")
    return replace(side, versions=versions)


def commit_of(checkout: Path) -> str:
    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(describe, capture_output=True, text=True, check=False)
    return done.stdout.strip() or checkout.name


# Pairs and their verdict


class Interval(NamedTuple):
    """The median of ratios and its 95 % interval."""

    median: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def ends(self) -> list[float]:
        return [round(self.low, 4), round(self.high, 4)]


def interval(ratios: Sequence[float]) -> Interval:
    """Compute the median and its bootstrap interval, by percentiles."""
    draw = random.Random(0).choices
    medians = sorted(statistics.median(draw(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Interval(statistics.median(ratios), medians[RESAMPLES // 40], medians[-RESAMPLES // 40])


@dataclass
class Pairs:
    """The seconds of one figure by side; the three entries of one turn have the same index."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def __len__(self) -> int:
        return len(self.seconds["new"])

    def faster(self, side: str) -> Interval:
        """Compute how many times as fast a side is as the first process of the old checkout."""
        both = zip(self.seconds["old"], self.seconds[side], strict=True)
        return interval([old / mine for old, mine in both])

    def row(self, name: str, unit: str, work: float, precision: float) -> dict[str, Any]:
        """Return the figure as it is printed; `work` is the amount of work in those seconds."""
        ratio, same = self.faster("new"), self.faster("again")
        new, old = (shown(self.seconds[side], unit, work) for side in ("new", "old"))
        return {
            "name": name, "value": new, "unit": unit, "old": old, "pairs": len(self),
            "ratio": round(ratio.median, 4), "interval": ratio.ends,
            "same": round(same.median, 4), "same_interval": same.ends,
            "passes": passes(ratio, precision),
        }  # fmt: skip


def shown(seconds: Sequence[float], unit: str, work: float) -> float:
    each = statistics.median(seconds) / work
    return round(1 / each) if unit.endswith("/s") else round({"s": 1, "us": 1e6}[unit] * each, 3)


def passes(ratio: Interval, precision: float) -> bool:
    return ratio.median >= PASSES and (ratio.half < precision or ratio.low >= LOWEST)


class Judge:
    """Adds pairs until a figure is precise enough."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seconds, self.precision = options.seconds, options.precision
        self.starts, self.most = options.starts, options.pairs
        self._order = random.Random(options.seed)

    def add(
        self, asks: Mapping[str, Ask], figures: Mapping[str, Pairs], start: int = 0, starts: int = 1
    ) -> float:
        """Add pairs to the figures of one measurement; return the cores that others used meanwhile.

        Each of the `starts` contributes an equal part of the pairs, and no more.
        """
        meter, done = Meter(), min(map(len, figures.values()))
        least, most = done + math.ceil(LEAST / starts), self.most * (start + 1) // starts
        while done < most and not (done >= least and self._is_enough(figures)):
            turn = {side: asks[side]() for side in self._order.sample(SIDES, len(SIDES))}
            for name, pairs in figures.items():
                for side, seconds in turn.items():
                    pairs.seconds[side].append(seconds[name])
            done += 1
        others = round(meter.cores()[1], 2)
        for name, pairs in figures.items():
            ratio = pairs.faster("new")
            say(f"        {name}: {ratio.median:.3f} +- {ratio.half:.3f} after {done} pairs")
        return others

    def _is_enough(self, figures: Mapping[str, Pairs]) -> bool:
        return all(pairs.faster("new").half < self.precision for pairs in figures.values())


# Processes that stay alive and take turns


@dataclass
class Course:
    """The measurement of one figure over several starts of its processes."""

    unit: str
    work: float
    count: int
    pairs: Pairs = field(default_factory=Pairs)
    others: float = 0.0


def turns(
    work: Training | Crossings, sides: Mapping[str, Side], judge: Judge, words: Sequence[str]
) -> Rows:
    courses: dict[str, Course] = {}
    for start in range(judge.starts):
        with started(work, sides, words) as asks:
            about = {side: ask() for side, ask in asks.items()}["new"]  # all have been set up
            for name, (unit, each) in about.items():
                if name not in courses:
                    count = calibrated(asks["old"], name, work.part * judge.seconds)
                    courses[name] = Course(unit, each * count, count)
                course = courses[name]
                of_side = {side: turn(ask, name, course.count) for side, ask in asks.items()}
                for ask in of_side.values():
                    ask()  # warm
                check_idle(work.name)
                others = judge.add(of_side, {name: course.pairs}, start, judge.starts)
                course.others = max(others, course.others)
    for name, course in courses.items():
        row = course.pairs.row(name, course.unit, course.work, judge.precision)
        yield {**row, "others": course.others}


@contextmanager
def started(
    work: Training | Crossings, sides: Mapping[str, Side], words: Sequence[str]
) -> Iterator[dict[str, Callable[..., Any]]]:
    script = str(Path(__file__).with_name("against_work.py"))
    with ExitStack() as stack:
        asks = {}
        for name, side in sides.items():
            command = [side.python, script, *words, str(side.checkout)]
            asks[name] = stack.enter_context(asked(command, **side.environment(work.flags)))
        yield asks


def turn(ask: Callable[..., Any], name: str, count: int) -> Ask:
    return lambda: {name: ask(name=name, count=count)}


def calibrated(ask: Callable[..., Any], name: str, seconds: float) -> int:
    """Find how many repetitions take about `seconds`."""
    count, taken = 1, ask(name=name, count=1)
    while taken < seconds / 2:
        count = max(count + 1, min(8 * count, round(count * seconds / taken)))
        taken = ask(name=name, count=count)
    return max(1, round(count * seconds / taken))


def check_idle(name: str) -> None:
    """Refuse a workload whose processes take time from the one whose turn it is."""
    meter, used = Meter(), 1.0
    for _ in range(10):  # processes that have just been set up may still be busy
        time.sleep(0.3)
        if (used := meter.cores()[0]) < IDLE_CORES:
            return
    sys.exit(f"{name}: the processes that wait for their turn use {used:.2f} cores.")


# A process for each measurement


def starts(work: Start, sides: Mapping[str, Side], judge: Judge) -> Rows:
    asks = {name: process_start(work, side) for name, side in sides.items()}
    asks["old"]()  # this and the next line write the byte code of both checkouts
    figures = {name: Pairs() for name in asks["new"]()}
    others = judge.add(asks, figures)
    for name, pairs in figures.items():
        yield {**pairs.row(name, "s", 1.0, judge.precision), "others": others}


def process_start(work: Start, side: Side) -> Ask:
    script = "import sys\nfrom {} import {} as command\n".format(*side.entry_point()) + work.script

    def ask() -> dict[str, float]:
        start = time.monotonic()
        done = side.run(script)
        seconds = time.monotonic() - start
        if done.returncode:
            sys.exit(f"{work.name}, {side.checkout}:\n{done.stderr}")
        if not work.figures:
            return {work.name: seconds}
        until, taken = map(float, done.stdout.split()[-2:])
        return dict(zip(work.figures, (until - start, taken), strict=True))

    return ask


if __name__ == "__main__":
    main()
