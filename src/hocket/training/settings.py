"""The settings of a kept run, which `config.json` records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hocket.system.code.project import as_paths


@dataclass(frozen=True)
class Settings:
    """The settings of a run: how to carry it out, and what to keep of it."""

    seed: int = 0
    """The random seed. Runs with the same seed give the same agent."""
    seeds: int = 1
    """The number of agents to train in one program, with the seeds `seed`, `seed` + 1, ..."""
    distribute: str | None = None
    """The strategy, which says where to run: NAME or NAME:option=value,... (see `hocket
    strategies`). By default `anakin`, `sebulba` if the environments run on the host, or on
    a cluster `actor_learner` with an actor on each node."""
    launch: str | None = None
    """How to run the instances of a strategy: as `threads` (the default), as `processes`, or by
    your own launcher, `file.py:NAME`."""
    cluster: str | None = None
    """The machines to run on: `hosts:FILE`, `ray` for a Ray cluster, or `loopback:2` to try it out
    on this machine. By default, the run is on this machine alone."""
    ship: tuple[str, ...] = ()
    """The code to send to the machines of a cluster: folders, packages or files. By default, the
    folders of your own modules that the algorithm uses. Installed packages are never sent."""
    lease: float = 60.0
    """On a cluster, the seconds after which a node that gives no sign of life counts as lost. The
    run then ends, and what still runs on that node ends itself."""
    wait: float = 0.0
    """The most seconds to wait for the nodes of a cluster that names a number of them, such as
    `ray:nodes=4,cpus=8`. By default, a cluster that lacks them is refused at once."""
    name: str | None = None
    """The name of the run's folder; by default the algorithm, the environment and a number."""
    runs: Path = Path("runs")
    """The folder that holds the folders of all runs."""
    save_every: int | None = None
    """Environment steps between checkpoints; by default there is a checkpoint every minute. The end
    of the run is always saved."""
    keep: int = 3
    """The number of latest checkpoints to keep. The best checkpoint is kept as well."""
    eval_every: int | None = None
    """Environment steps between evaluations of the greedy policy; by default there are none."""
    eval_episodes: int = 64
    """The number of episodes of an evaluation."""
    loggers: tuple[str, ...] = ()
    """Loggers that get every row of metrics, besides metrics.jsonl: `tensorboard`, your own
    path/to/file.py:Name, or one of an installed package. Write options as NAME:option=value,..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", Path(self.runs))
        if isinstance(self.loggers, str) or not all(isinstance(x, str) for x in self.loggers):
            raise ValueError(
                "loggers must be given by name, so that the configuration can record them: "
                f'loggers=["tensorboard", "mine.py:Mine"], found {self.loggers!r}.'
            )
        object.__setattr__(self, "loggers", tuple(self.loggers))
        object.__setattr__(self, "ship", as_paths(self.ship))
        if self.name is not None and self.name in ("", ".", ".."):
            raise ValueError(f"`{self.name}` cannot be the name of a folder.")
        if not isinstance(self.distribute, str | None):
            raise ValueError(
                "a kept run needs its strategy as text, so that the configuration can record it: "
                'distribute="name:option=value" or "file.py:name". (`hocket.run` takes any.)'
            )
        for name in ("seeds", "keep", "save_every", "eval_every", "eval_episodes"):
            value = self.__dict__[name]
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}.")
