"""Loggers: who is told of every row of numbers that a run gives. One logger, one file.

    jsonl.py        `metrics.jsonl`, which every kept run has
    tensorboard.py  files of events for TensorBoard
    display.py      the live display, or plain lines

This listing is the registry, by `LOGGER` of each file; installed packages add theirs by an entry
point of the group `hocket.loggers`. One of your own is any class with these four methods, named as
`path/to/file.py:Name` (examples/own_logger.py; `hocket.testing.check_logger` checks it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hocket.report.outcome import Outcome

Numbers = Mapping[str, float | None]
"""The numbers of a row by name; None where there is none, as before the first episode has ended."""


@dataclass(frozen=True)
class About:
    """Everything that a logger is told of a run before its first row."""

    title: str
    folder: Path
    """The run's own, in which a logger may keep files."""
    folders: Mapping[int, Path]
    """For each seed the folder of its records; the run's own where there is one seed."""
    config: Mapping[str, Any]
    """All that the run depends on, as `config.json` has it."""
    progress: Outcome
    """How the run stands: kept up to date, to be read whenever a row comes."""
    last_step: int = 0
    """The step from which a resumed run goes on: whatever was told of later ones comes again, the
    same. 0 for a run that begins."""


@runtime_checkable
class Logger(Protocol):
    """Whoever keeps or shows the numbers of a run.

    It is made before anything runs: whatever can be refused (a package that is missing) is refused
    then. An error in any of these methods ends the run, with the logger's name.
    """

    def begin(self, about: About, /) -> None:
        """Open what is needed, and forget whatever was told after `about.last_step`."""

    def row(self, step: int, numbers: Numbers, seed: int, /) -> None:
        """Keep the numbers of one seed's agent after so many environment steps.

        The names may differ from row to row: an evaluation has a row of its own. When this returns
        the row is safe, since the process may be killed right after, and resumed from this step.
        """

    def media(self, path: Path, /) -> None:
        """Take note of a file that the run has written, such as a trace."""

    def end(self, summary: Mapping[str, Any], /) -> None:
        """Close what is open: the run is over.

        `summary` is that of `summary.json`; of a run that failed it says how far it came, and
        `error`.
        """
