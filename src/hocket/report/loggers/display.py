"""The live display, or plain lines where there is no terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from hocket.report.display import picture, plain_line
from hocket.report.loggers import About, Numbers
from hocket.report.outcome import Outcome

LINE_SECONDS = 2.0
"""The least number of seconds between two plain lines."""
DRAW_SECONDS = 0.25
"""The least number of seconds between two updates by `row`. Calls in between do nothing."""


class Display:
    """Shows the progress of a run, as a panel in a terminal and as plain lines elsewhere.

    Rows update it, and so does `update`, because a long run may take a minute between two rows.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._run: Outcome | None = None
        self._live: Live | None = None
        self._printed = self._drawn = -math.inf
        self._ended = False
        self._told = 0
        self._returns: list[float] = []

    def begin(self, about: About) -> None:
        """Show that the run is compiling."""
        self._run = run = about.progress
        if self.console.is_terminal:
            self._live = Live(picture(run, []), console=self.console, refresh_per_second=8)
            self._live.start()
        else:
            self._print(f"{run.title}: compiling; records in {run.folder}")

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        is_due = time.monotonic() - self._drawn > DRAW_SECONDS
        # The first rows come before the progress has a speed: leave the display as it is.
        if self._run is not None and is_due and self._run.env_steps_per_second:
            self.update(self._run)

    def media(self, path: Path) -> None:
        self._print(f"written: {path}")

    def end(self, summary: Mapping[str, Any]) -> None:
        if self._run is not None and "error" not in summary:
            self.update(self._run)
        if self._live:
            self._live.stop()

    def update(self, run: Outcome) -> None:
        """Show the present progress of a run."""
        self._drawn = time.monotonic()
        self._returns.append(run.return_mean)
        for note in run.notes[self._told :]:
            self._print(f"note: {note}")
        self._told = len(run.notes)
        had_ended, self._ended = self._ended, run.env_steps >= run.total_steps
        if self._live:
            self._live.update(picture(run, self._returns))
        elif had_ended:  # saving at the end updates again: do not repeat the last line
            return
        elif self._ended or time.monotonic() - self._printed > LINE_SECONDS:
            self._printed = time.monotonic()
            self._print(plain_line(run))

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


LOGGER = Display
