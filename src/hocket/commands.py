"""The commands, each a function of its arguments; flags are the fields of dataclasses."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from hocket.algorithms import ALGORITHMS
from hocket.cluster import share_cores
from hocket.distribute import options_text, strategies
from hocket.envs import Discrete, Env, make, names
from hocket.experiment import Experiment, Outcome
from hocket.flags import defaults_of, parse, setting_of, split_word
from hocket.planning import graph, leave_memory, plan, strategies_text
from hocket.runtime.interrupt import heed_termination
from hocket.saved import Evaluator, find_run, load, load_agents


@dataclass(frozen=True)
class Again:
    """Continuing, repeating, and what is shown."""

    resume: bool = False
    """Continue the run, exactly, from its last checkpoint."""
    config: Path | None = None
    """Take everything from the config.json of a run; other flags change it."""
    trace: Path | None = None
    """Write what every instance did when (segments, messages, waits) into this file, for
    https://ui.perfetto.dev. Recording slows a run down."""
    quiet: bool = False
    """Show nothing."""
    debug: bool = False
    """Show the traceback of a mistake."""  # `main` reads it, before anything can go wrong


def train(arguments: list[str]) -> None:
    """Train an agent, and keep the run in a folder."""
    word, rest = split_word(arguments)
    heed_termination()
    # Before an environment is made, which may start JAX.
    on_slices = setting_of(rest, "distribute").startswith("sliced")
    seeds = setting_of(rest, "seeds")
    if seeds.isdigit() and not on_slices:  # slices share the cores themselves
        share_cores(int(seeds))
    if on_slices or setting_of(rest, "launch") == "processes":
        leave_memory()
    defaults, settings = defaults_of(word, rest, "train")
    about = f"Train an agent, and keep the run in a folder.\n\n{strategies_text()}"
    command: Any = parse(
        "train", word, rest, about, algorithm=defaults, settings=settings, again=Again()
    )
    outcome = _watch(command) if not command.again.quiet else _experiment(command, None).train()
    if not command.again.quiet:
        _tell(outcome)
    if outcome.interrupted:
        sys.exit(130)  # as Ctrl-C has it; what there is to say was said


def _watch(command: Any) -> Outcome:
    from hocket.report.display import Display

    with Display() as display:
        return _experiment(command, display).train()


def _experiment(command: Any, watch: Any) -> Experiment:
    again = command.again
    return Experiment(command.algorithm, command.settings, again.resume, watch, again.trace)


def _tell(outcome: Outcome) -> None:
    seconds = outcome.seconds
    compiling = seconds.get("trace", 0.0) + seconds.get("compile", 0.0)
    found = "no episode ended" if math.isnan(outcome.return_mean) else f"{outcome.return_mean:.1f}"
    print(
        f"return {found} (last 100 episodes) after {outcome.env_steps:,} steps: "
        f"{seconds.get('run', 0.0):.1f} s running, {compiling:.1f} s compiling"
    )
    print(f"saved in {outcome.folder}; next: hocket eval {outcome.folder}")


@dataclass(frozen=True)
class Eval:
    """Play a trained agent and say how good it is."""

    run: tyro.conf.Positional[Path]
    """The run: its folder, or its name in `runs`."""
    episodes: int | None = None
    """How many episodes; by default as in evaluations during training."""
    seed: int = 0
    """Other seeds are other episodes; 0 are those of evaluations during training."""
    checkpoint: str = "latest"
    """Which agent: `latest`, `best`, or that after so many iterations."""
    agent: int | None = None
    """Which one, where several seeds were trained; by default all."""


def evaluate(arguments: list[str]) -> None:
    """Evaluate the agents of a run."""
    command = tyro.cli(Eval, args=arguments, prog="hocket eval")
    if command.episodes is not None and command.episodes < 1:
        raise ValueError(f"episodes must be at least 1, found {command.episodes}.")
    runs = load_agents(command.run, checkpoint=_checkpoint(command.checkpoint))
    if command.agent is not None:
        runs = [load(command.run, agent=command.agent, checkpoint=_checkpoint(command.checkpoint))]
    for note in runs[0].notes:
        print(f"note: {note}: the one before it is used")
    episodes = command.episodes or runs[0].config["eval_episodes"]
    evaluator = Evaluator(runs[0].algorithm, episodes, command.seed)
    for agent, run in enumerate(runs):
        found = evaluator(run.state)
        which = f"agent {agent}: " if len(runs) > 1 else ""
        print(
            f"{which}return {found.returns.mean():.1f} (from {found.returns.min():.1f} to "
            f"{found.returns.max():.1f}, {episodes} episodes), length "
            f"{found.lengths.mean():.1f}, after {run.iteration:,} iterations"
        )
        if not found.ended.all():
            cut = int((~found.ended).sum())
            print(f"note: {cut} episodes did not end and were cut at {found.lengths.max():,} steps")


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of runs; those that differ only in the seed share a band."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The runs: their folders, or their names in `runs`."""
    out: Path = Path("curves.png")
    """Where to draw: a .png, .svg or .pdf."""
    metric: str = "return_mean"
    """What to draw: any number of metrics.jsonl."""
    title: str | None = None
    """Above the picture; by default what all curves have in common."""


def plot(arguments: list[str]) -> None:
    """Draw learning curves."""
    command = tyro.cli(Plot, args=arguments, prog="hocket plot")
    from hocket.report.plot import plot as draw

    if not command.runs:
        raise ValueError("name at least one run: hocket plot runs/ppo-CartPole-v1-1")
    folders = [find_run(run) for run in command.runs]
    for curve in draw(folders, command.out, metric=command.metric, title=command.title):
        print(f"{curve.text}: {curve.mean[-1]:.1f} at the end")
    print(f"drawn in {command.out}")


@dataclass(frozen=True)
class Record:
    """Film a trained agent."""

    run: tyro.conf.Positional[Path]
    """The run: its folder, or its name in `runs`."""
    out: Path = Path("policy.mp4")
    """Where to: a .mp4 or .gif."""
    episodes: int = 1
    """How many episodes."""
    max_steps: int = 1000
    """Longer episodes are cut there."""
    fps: int = 30
    """Frames a second."""
    seed: int = 0
    """Other seeds are other episodes."""
    checkpoint: str = "latest"
    """Which agent: `latest`, `best`, or that after so many iterations."""
    agent: int = 0
    """Which one, where several seeds were trained."""


def record(arguments: list[str]) -> None:
    """Film a trained agent."""
    import jax

    from hocket.envs.recording import record as film
    from hocket.report.video import check_name, write_video

    command = tyro.cli(Record, args=arguments, prog="hocket record")
    check_name(command.out)
    run = load(command.run, agent=command.agent, checkpoint=_checkpoint(command.checkpoint))
    filmed = film(
        run.env, run.algorithm.policy(run.state), jax.random.key(command.seed),
        episodes=command.episodes, max_steps=command.max_steps,
    )  # fmt: skip
    write_video(command.out, filmed.frames, command.fps)
    returns = ", ".join(f"{x:.1f}" for x in filmed.returns)
    print(f"{len(filmed.frames)} frames in {command.out}; return {returns}")


def list_algorithms(arguments: list[str]) -> None:
    """List the algorithms."""
    _only_help("algorithms", arguments)
    for name, cls in ALGORITHMS.items():
        print(f"{name:<16}{_first_line(cls)}")
    print("\none of your own: hocket train path/to/file.py:Name, or package.module:Name")


def list_envs(arguments: list[str]) -> None:
    """List the environments."""
    _only_help("envs", arguments)
    known = names()
    for name in known:
        about = "" if name.startswith("gymnax:") else _spaces(make(name))
        print(f"{name:<16}{about}".rstrip())
    if not any(name.startswith("gymnax:") for name in known):
        print("gymnax:<name>   those of gymnax, after: pip install 'hocket[gymnax]'")
    print("playground:<name>   those of MuJoCo Playground, such as CartpoleBalance")
    print("gymnasium:<name>, envpool:<name>   those of Gymnasium, Atari too, and EnvPool")
    print("\nwith options:    --env CartPole-v1:gravity=1.6,max_steps=200")
    print("one of your own: --env path/to/file.py:Env, or package.module:Env")


def list_strategies(arguments: list[str]) -> None:
    """List the strategies."""
    _only_help("strategies", arguments)
    for name, configure in strategies().items():
        print(f"{name:<20}{_first_line(configure)}\n{'':<20}options: {options_text(configure)}")
    print("\nwith options:    --distribute actor_learner:actors=4,lag=1 --launch processes")
    print("one of your own: --distribute path/to/file.py:name, decorated with @hocket.strategy")


@dataclass(frozen=True)
class Devices:
    """Print what this machine has, and how each device can be cut into slices.

    Where a GPU has NVIDIA's MPS, that is started to see whether it does, and ended again.
    """

    json: bool = False
    """As JSON, for programs."""


def list_devices(arguments: list[str]) -> None:
    """List the devices, and how each can be cut."""
    command = tyro.cli(Devices, args=arguments, prog="hocket devices")
    from hocket.cluster.survey import as_text, survey

    leave_memory()
    found = survey()
    print(json.dumps(found, indent=2) if command.json else as_text(found))
    if not command.json:
        print("\nto use slices: --distribute sliced:slices=2, with cut=NAME for one of these ways")


RUN: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "eval": evaluate,
    "plot": plot,
    "record": record,
    "plan": plan,
    "graph": graph,
    "algorithms": list_algorithms,
    "envs": list_envs,
    "strategies": list_strategies,
    "devices": list_devices,
}


def _checkpoint(word: str) -> Any:
    if word in ("latest", "best"):
        return word
    if not word.isdigit():
        raise ValueError(f"checkpoint must be `latest`, `best` or a number, found `{word}`.")
    return int(word)


def _only_help(command: str, arguments: list[str]) -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    Nothing.__doc__ = f"Prints the {command}."
    tyro.cli(Nothing, args=arguments, prog=f"hocket {command}")


def _spaces(env: Env) -> str:
    seen, done = env.observation_space.spec(), env.action_space
    acts = f"one of {done.n}" if isinstance(done, Discrete) else _shape(done.spec())
    return f"observes {_shape(seen)}, acts {acts}"


def _shape(spec: Any) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]
