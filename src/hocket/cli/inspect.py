"""`hocket eval`, `plot` and `record`: the commands that read kept runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from hocket.training.load import Evaluator, load, load_agents


@dataclass(frozen=True)
class Eval:
    """Play episodes with a trained agent, and print their returns."""

    run: tyro.conf.Positional[Path]
    """The run: its folder, or its name in `runs`."""
    episodes: int | None = None
    """The number of episodes; by default as many as in the evaluations during training."""
    seed: int = 0
    """The seed of the episodes; 0 plays the same episodes as the evaluations during training."""
    checkpoint: str = "latest"
    """The checkpoint: `latest`, `best`, or the number of its iteration."""
    agent: int | None = None
    """The number of the agent, from 0, if several seeds were trained; by default all agents."""


def eval_command(arguments: list[str]) -> None:
    """Evaluate the agents of a run."""
    command = tyro.cli(Eval, args=arguments, prog="hocket eval")
    if command.episodes is not None and command.episodes < 1:
        raise ValueError(f"episodes must be at least 1, found {command.episodes}.")
    checkpoint, agent = _checkpoint(command.checkpoint), command.agent
    if agent is None:
        runs = load_agents(command.run, checkpoint=checkpoint)
    else:
        runs = [load(command.run, agent=agent, checkpoint=checkpoint)]
    for note in runs[0].notes:
        print(f"note: {note}: using the one before it")
    episodes = command.episodes or runs[0].config["eval_episodes"]
    evaluator = Evaluator(runs[0].algorithm, episodes, command.seed)
    for number, run in enumerate(runs):
        played = evaluator(run.state)
        which = f"agent {number}: " if len(runs) > 1 else ""
        print(
            f"{which}return {played.returns.mean():.1f} (from {played.returns.min():.1f} to "
            f"{played.returns.max():.1f}, {episodes} episodes), length "
            f"{played.lengths.mean():.1f}, after {run.iteration:,} iterations"
        )
        if not played.ended.all():
            cut = int((~played.ended).sum())
            print(
                f"note: {cut} episodes had not ended after {played.lengths.max():,} steps and "
                f"were cut off there"
            )


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of runs. Runs that differ only in the seed become one curve."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The runs: their folders, or their names in `runs`."""
    out: Path = Path("curves.png")
    """The file to save the picture in: .png, .svg or .pdf."""
    metric: str = "return_mean"
    """The metric to draw: the name of any number in metrics.jsonl."""
    title: str | None = None
    """The title of the picture; by default the label of the curve, if there is only one."""


def plot_command(arguments: list[str]) -> None:
    """Draw learning curves."""
    command = tyro.cli(Plot, args=arguments, prog="hocket plot")
    from hocket.report.plot import check_figure, draw_curves
    from hocket.training.curves import read_curves

    check_figure(command.out)
    curves = read_curves(command.runs, command.metric)
    draw_curves(curves, command.out, command.metric, command.title)
    for curve in curves:
        print(f"{curve.text}: {curve.mean[-1]:.1f} at the end")
    print(f"saved as {command.out}")


@dataclass(frozen=True)
class Record:
    """Record a video of a trained agent."""

    run: tyro.conf.Positional[Path]
    """The run: its folder, or its name in `runs`."""
    out: Path = Path("policy.mp4")
    """The file to save the video in: .mp4 or .gif."""
    episodes: int = 1
    """The number of episodes."""
    max_steps: int = 1000
    """The number of steps after which an episode is cut off."""
    fps: int = 30
    """Frames per second."""
    seed: int = 0
    """The seed of the episodes."""
    checkpoint: str = "latest"
    """The checkpoint: `latest`, `best`, or the number of its iteration."""
    agent: int = 0
    """The number of the agent, from 0, if several seeds were trained."""


def record_command(arguments: list[str]) -> None:
    """Record a video of a trained agent."""
    import jax

    from hocket.envs.play.recording import record
    from hocket.report.video import check_name, write_video

    command = tyro.cli(Record, args=arguments, prog="hocket record")
    check_name(command.out)
    run = load(command.run, agent=command.agent, checkpoint=_checkpoint(command.checkpoint))
    video = record(
        run.env, run.algorithm.policy(run.state), jax.random.key(command.seed),
        episodes=command.episodes, max_steps=command.max_steps,
    )  # fmt: skip
    write_video(command.out, video.frames, command.fps)
    returns = ", ".join(f"{x:.1f}" for x in video.returns)
    print(f"{len(video.frames)} frames in {command.out}; return {returns}")


def _checkpoint(word: str) -> Any:
    return int(word) if word.isdigit() else word
