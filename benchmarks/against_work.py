"""The workloads of `against.py`. Both sides run this file, so it uses only what both commits have.

    python benchmarks/against_work.py fused 0 CHECKOUT      # reads a JSON line for each turn

Training goes through the public API, the crossings through the `split.py` of each side.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast


class Figure(NamedTuple):
    """Work that can be repeated `count` times, and the unit of its speed."""

    run: Callable[[int], float]
    """Takes a count, returns the seconds of as many repetitions."""
    unit: str
    work: float = 1.0
    """How many of the unit one repetition does."""


@dataclass(frozen=True)
class Training:
    """PPO through the public API, in blocks of equally many iterations on every side."""

    name: str
    env: str
    num_envs: int
    sizes: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment."""
    distribute: str = "anakin"
    launch: str | None = None
    flags: str = ""
    part: float = 1.0
    """The share of a turn's usual seconds."""

    @contextmanager
    def opened(self, checkout: Path) -> Iterator[dict[str, Figure]]:
        import hocket
        from hocket.algorithms import PPO

        env = hocket.make(self.env, **self.options)
        algorithm = PPO(env=env, num_envs=self.num_envs, env_steps=10**9, **self.sizes)
        reports = hocket.iterate(algorithm, distribute=self.distribute, launch=self.launch)
        with closing(cast("Any", reports)):
            report = next(reports)

            def run(count: int) -> float:
                start, done = time.perf_counter(), 0
                while done < count:
                    done += report.executor.run(count - done)[0]
                return time.perf_counter() - start

            steps = report.env_steps / report.iteration
            yield {self.name: Figure(run, "env steps/s", steps)}


@dataclass(frozen=True)
class Crossings:
    """The crossings of `split.py`, from each side's own script: transports are no public API."""

    size: str
    flags: str = "--xla_force_host_platform_device_count=2"
    part: float = 0.25  # there are many crossings, and each is short

    @property
    def name(self) -> str:
        return f"crossings, {self.size}"

    @contextmanager
    def opened(self, checkout: Path) -> Iterator[dict[str, Figure]]:
        split = module_of(checkout / "benchmarks" / "split.py")
        nbytes = split.SIZES[self.size]
        ways = {
            "same device": split.between_threads(nbytes, devices=1),
            "device to device": split.between_threads(nbytes, devices=2),
            "shared memory, the ring alone": split.between_processes(nbytes, alone=True),
            "shared memory, jax to jax": split.between_processes(nbytes, alone=False),
        }

        def crossing(ends: Any) -> Figure:  # there and back are two
            return Figure(lambda count: 2 * count * split.ping_pong(ends, count), "us", 2)

        with ExitStack() as stack:
            figures = {
                f"{way}, {self.size}: a crossing": crossing(stack.enter_context(ends))
                for way, ends in ways.items()
            }
            for figure in figures.values():
                figure.run(1)  # wait until the process at the other end is ready
            yield figures


@dataclass(frozen=True)
class Start:
    """Work that needs a new process for each measurement.

    The script calls `command`, the function behind `hocket`. Without `figures` the figure is the
    time of the whole process. Otherwise the script prints the time at which the first figure ended,
    and the seconds of the second.
    """

    name: str
    script: str
    figures: Sequence[str] = ()


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


HELP = """
sys.argv = ["hocket", "--help"]
command()
"""
# Tracing begins when `init` is called. Tracing is timed after that, and still happens for the first
# time then.
TRACE = """
import time
import hocket
from hocket.algorithms import PPO

class Began(BaseException):
    pass

def init(*_):
    raise Began(time.monotonic())

whole, PPO.init = PPO.init, init
sys.argv = ["hocket", "train", "ppo"]
try:
    command()
except Began as began:
    when = began.args[0]
PPO.init = whole
algorithm = PPO(env=hocket.make("CartPole-v1"))
start = time.monotonic()
hocket.trace(algorithm, 64)
print(when, time.monotonic() - start)
"""

# The sizes of `fused.py`, of `overlap` in `split.py`, and of `few` in `sebulba.py`.
CARTPOLE = {"normalize_obs": False, "length": 128, "epochs": 4, "minibatches": 4}
ACROBOT = {"epochs": 1, "minibatches": 4, "hidden": (24, 24)}
FEW = {"length": 128, "epochs": 10, "minibatches": 16, "learning_rate": 2e-3}

SECTIONS: dict[str, Sequence[Training | Crossings | Start]] = {
    "fused": tuple(
        Training(f"ppo cartpole, {num_envs:,} envs", "CartPole-v1", num_envs, CARTPOLE)
        for num_envs in (16, 64, 2048)
    ),
    "crossings": tuple(Crossings(size) for size in ("64 B", "64 KiB", "16 MiB")),
    "data_parallel": (
        Training(
            "ppo acrobot, 256 envs: data_parallel, two processes", "Acrobot-v1", 256, ACROBOT,
            distribute="data_parallel:replicas=2", launch="processes",
        ),
    ),
    "sebulba": (
        Training(
            "ppo envpool cartpole, 8 envs: sebulba, one thread", "envpool:CartPole-v1", 8, FEW,
            options={"num_threads": 1}, distribute="sebulba:threads=1,lag=1",
        ),
    ),
    "help": (Start("hocket --help", HELP),),
    "trace": (
        Start(
            "hocket train ppo", TRACE,
            ("hocket train ppo: until tracing begins", "tracing ppo, 64 envs"),
        ),
    ),
}  # fmt: skip


def main() -> None:
    """Set up a workload, then run as much of it as each input line asks for."""
    section, index, checkout = sys.argv[1:]
    work = SECTIONS[section][int(index)]
    assert not isinstance(work, Start)
    # Answers get the real standard output, so that nothing else printed here looks like one.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with work.opened(Path(checkout)) as figures:
        about = {name: [figure.unit, figure.work] for name, figure in figures.items()}
        for line in sys.stdin:
            request = json.loads(line)
            answer = figures[request["name"]].run(request["count"]) if request else about
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
