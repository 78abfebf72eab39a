"""Finds the loggers of a run by name, passes them every row, and names a logger that fails."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from hocket.report.loggers import About, Logger, Numbers
from hocket.system.names import read_words
from hocket.system.registry import Registry

LOGGERS = Registry("logger", "hocket.report.loggers", "LOGGER", group="hocket.loggers")
ALWAYS = ("jsonl",)
"""The loggers that every run with a folder has. A resume reads the file that `jsonl` writes."""


class LoggerError(Exception):
    """The error of a logger that failed during a run."""


def make_loggers(chosen: Sequence[str]) -> dict[str, Logger]:
    """Make a run's loggers from words such as `tensorboard` or `mine.py:Mine:every=10`."""
    return {words: make_logger(words) for words in (*ALWAYS, *chosen)}


def make_logger(words: str) -> Logger:
    """Make one logger; raise if its name is unknown or a package is missing."""
    name, options = read_words(words)
    try:
        return LOGGERS.make(name, Logger, **options)
    except ImportError as error:
        raise ImportError(
            f"the logger `{name}` cannot be imported: {error}. Install what it needs, or leave it "
            f"out."
        ) from error


class Loggers:
    """All loggers of one run. A run that succeeds calls `end` with its summary.

    If the run fails, leaving the context ends the loggers that have begun.
    """

    def __init__(self, named: Mapping[str, Logger]) -> None:
        self._named = named
        self._open: dict[str, Logger] = {}
        self._step = 0

    def __enter__(self) -> Loggers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            return
        message = str(error) or type(error).__name__
        try:
            self.end({"finished": False, "env_steps": self._step, "error": message})
        except LoggerError as another:  # secondary: `error` is what ended the run
            error.add_note(str(another))

    def begin(self, about: About) -> None:
        self._step = about.last_step
        for name, logger in self._named.items():
            with _named_in_errors(name):
                logger.begin(about)
            self._open[name] = logger

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        self._step = step
        for name, logger in self._open.items():
            with _named_in_errors(name):
                logger.row(step, numbers, seed)

    def media(self, path: Path) -> None:
        for name, logger in self._open.items():
            with _named_in_errors(name):
                logger.media(path)

    def end(self, summary: Mapping[str, Any]) -> None:
        """End every logger, even if one of them fails to end. Raise its error after that."""
        with ExitStack() as stack:
            while self._open:
                name, logger = self._open.popitem()
                stack.callback(_named_in_errors(name)(logger.end), summary)


@contextmanager
def _named_in_errors(name: str) -> Iterator[None]:
    """Turn an error into one that names the logger and the line in its code."""
    try:
        yield
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise LoggerError(
            f"the logger `{name}` failed: {type(error).__name__}: {error} (in {where.name} of "
            f"{where.filename}:{where.lineno})."
        ) from error
