"""Loggers, which get every row of a run's metrics. Each file here has one logger.

    jsonl.py        `metrics.jsonl`, which every run with a folder has
    tensorboard.py  event files for TensorBoard
    display.py      the live display, or plain lines

This folder is the registry: each file defines a `LOGGER`. Installed packages add theirs by an entry
point of the group `hocket.loggers`. Your own logger is any class with the four methods of `Logger`,
named as `path/to/file.py:Name` (examples/own_logger.py; `hocket.testing.check_logger` tests it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hocket.report.outcome import Outcome

Numbers = Mapping[str, float | None]
"""The numbers of a row by name. A missing number is None, such as the mean return when no episode
has ended."""


@dataclass(frozen=True)
class About:
    """The data of a run that a logger gets before its first row."""

    title: str
    folder: Path
    """The run's folder, in which a logger may keep files."""
    folders: Mapping[int, Path]
    """The folder of each seed's records. A single seed has the folder of the run itself."""
    config: Mapping[str, Any]
    """Every setting that the run depends on, as in `config.json`."""
    progress: Outcome
    """The progress of the run, which is up to date at every row."""
    last_step: int = 0
    """The environment step from which a resumed run continues; 0 for a new run. The interrupted
    run may have sent rows of later steps already. The logger gets these rows again."""


@runtime_checkable
class Logger(Protocol):
    """A logger keeps or shows the metrics of a run.

    It is made before anything runs. Its constructor should raise if the logger cannot work, for
    example because a package is missing. An error in a method ends the run and names the logger.
    """

    def begin(self, about: About, /) -> None:
        """Open what is needed, and delete all rows after `about.last_step`."""

    def row(self, step: int, numbers: Numbers, seed: int, /) -> None:
        """Keep a row of one seed's numbers, after `step` environment steps.

        Names may differ from row to row, since an evaluation has a row of its own. The row must be
        safe when this returns, since the process may be killed, and the run resumed from this step.
        """

    def media(self, path: Path, /) -> None:
        """Handle a file that the run has written, such as a trace."""

    def end(self, summary: Mapping[str, Any], /) -> None:
        """Close what is open, because the run is over.

        `summary` is the contents of `summary.json`. If the run failed, it has `env_steps` and an
        `error` instead.
        """
