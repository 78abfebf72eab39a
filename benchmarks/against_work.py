"""What `against.py` measures. Run by either side's interpreter, so only what both commits have.

    python benchmarks/against_work.py fused 0 CHECKOUT      # then a JSON line for each turn

Training goes through the front door, the crossings through the side's own `split.py`.
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
    """Something that can be done `count` times, and how its speed is told."""

    run: Callable[[int], float]
    """Seconds of so many."""
    unit: str
    work: float = 1.0
    """So much of what the unit counts is done by one."""


@dataclass(frozen=True)
class Training:
    """PPO through the front door, in blocks of as many iterations on every side."""

    name: str
    env: str
    num_envs: int
    sizes: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the environment."""
    distribute: str = "anakin"
    launch: str | None = None
    flags: str = ""
    part: float = 1.0
    """Of the seconds that a turn takes."""

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
    """The crossings of `split.py`, by each side's own script: transports are no public API."""

    size: str
    flags: str = "--xla_force_host_platform_device_count=2"
    part: float = 0.25  # there are many of them, and each is short

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
                figure.run(1)  # the processes at the other ends are ready
            yield figures


@dataclass(frozen=True)
class Start:
    """What takes a process: one start is one measurement.

    The script calls `command`, the function behind `hocket`. Without figures of its own, the figure
    is how long the process takes; else it prints the time at which the first one ended, and the
    seconds that the second one took.
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
# Tracing begins when `init` is called. It is timed by itself afterwards: nothing else has traced.
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
    """Set a workload up, then run as much of it as each line on the input asks for."""
    section, index, checkout = sys.argv[1:]
    work = SECTIONS[section][int(index)]
    assert not isinstance(work, Start)
    # Whatever else is printed here must not be taken for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with work.opened(Path(checkout)) as figures:
        about = {name: [figure.unit, figure.work] for name, figure in figures.items()}
        for line in sys.stdin:
            request = json.loads(line)
            told = figures[request["name"]].run(request["count"]) if request else about
            print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
