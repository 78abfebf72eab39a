"""The settings of a kept run, which its `config.json` has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How a run is carried out, and what it leaves behind."""

    seed: int = 0
    """The same seed gives the same agent."""
    seeds: int = 1
    """How many agents to train in one program, with seeds from `seed` on."""
    distribute: str | None = None
    """The strategy: where it runs. NAME or NAME:option=value,... (see `hocket strategies`). By
    default `anakin`, or `sebulba` if the environments run on the host."""
    launch: str | None = None
    """How the instances of a strategy run: `threads` (the default), `processes`, or `file.py:NAME`
    for a launcher of your own."""
    name: str | None = None
    """The run's folder in `runs`; by default of algorithm, environment and a number."""
    runs: Path = Path("runs")
    """Where the folders of runs are."""
    save_every: int | None = None
    """Environment steps between checkpoints; by default one a minute. The last is always saved."""
    keep: int = 3
    """How many of the last checkpoints to keep; the best is kept besides."""
    eval_every: int | None = None
    """Environment steps between evaluations of the greedy policy; by default there are none."""
    eval_episodes: int = 64
    """Episodes of an evaluation."""
    loggers: tuple[str, ...] = ()
    """Who is told of every row beside metrics.jsonl: tensorboard, path/to/file.py:Name, or one of
    an installed package; each with options as NAME:option=value,..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", Path(self.runs))
        if isinstance(self.loggers, str) or not all(isinstance(x, str) for x in self.loggers):
            raise ValueError(
                'loggers are named, so that a configuration can keep them: loggers=["tensorboard", '
                f'"mine.py:Mine"], found {self.loggers!r}.'
            )
        object.__setattr__(self, "loggers", tuple(self.loggers))
        if self.name is not None and self.name in ("", ".", ".."):
            raise ValueError(f"`{self.name}` is no name for a folder.")
        if not isinstance(self.distribute, str | None):
            raise ValueError(
                "a run that is kept says in words where it runs, so that its configuration can: "
                'distribute="name:option=value" or "file.py:name". (`hocket.run` takes any.)'
            )
        for name in ("seeds", "keep", "save_every", "eval_every", "eval_episodes"):
            value = self.__dict__[name]
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}.")
