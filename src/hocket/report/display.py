"""The live display of a run: one line that grows, or plain lines where there is no terminal."""

from __future__ import annotations

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_SECONDS = 2.0
"""How often a plain line is printed."""


class Display:
    """Shows how far a run is, how fast, and how well; use it as a context."""

    def __init__(self, title: str, total: int, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = self._console.is_terminal
        self._total, self._title = total, title
        self._printed = -math.inf
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._progress.add_task(title, total=total, text="compiling")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(self, env_steps: int, return_mean: float, seconds: float) -> None:
        """Show the run after `env_steps` environment steps in `seconds` of running."""
        rate = env_steps / seconds if seconds else 0.0
        found = "no episode ended yet" if math.isnan(return_mean) else f"return {return_mean:8.1f}"
        text = f"{found}   {rate:>9,.0f} steps/s"
        done = min(env_steps, self._total)
        self._progress.update(self._task, completed=done, text=text)
        now = time.monotonic()
        if not self._live and (now - self._printed > LINE_SECONDS or env_steps >= self._total):
            self._printed = now
            self._console.print(f"{self._title}  {env_steps:>11,} steps   {text}", highlight=False)
