"""The loggers of a run: found by name, told of every row, and named where one fails."""

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
"""Every kept run has these: a resumed one reads its last episodes there."""


class LoggerError(Exception):
    """A logger that failed while a run went on."""


def make_loggers(chosen: Sequence[str]) -> dict[str, Logger]:
    """The loggers of a run in words, as `tensorboard` or `mine.py:Mine:every=10`; each once."""
    return {words: make_logger(words) for words in (*ALWAYS, *chosen)}


def make_logger(words: str) -> Logger:
    """One logger, or why there is none: its name is unknown, or it lacks a package."""
    name, options = read_words(words)
    try:
        return LOGGERS.make(name, Logger, **options)
    except ImportError as error:
        raise ImportError(
            f"the logger `{name}` cannot be imported: {error}. Install what it needs, or leave it "
            f"out."
        ) from error


class Loggers:
    """All loggers of one run; use it as a context, which ends those that have begun."""

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
        told = str(error) or type(error).__name__
        try:
            self.end({"finished": False, "env_steps": self._step, "error": told})
        except LoggerError as also:  # what ended the run comes first
            error.add_note(str(also))

    def begin(self, about: About) -> None:
        self._step = about.last_step
        for name, logger in self._named.items():
            with _blamed(name):
                logger.begin(about)
            self._open[name] = logger

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        self._step = step
        for name, logger in self._open.items():
            with _blamed(name):
                logger.row(step, numbers, seed)

    def media(self, path: Path) -> None:
        for name, logger in self._open.items():
            with _blamed(name):
                logger.media(path)

    def end(self, summary: Mapping[str, Any]) -> None:
        """End all of them, also where one fails at it; then that one is named."""
        with ExitStack() as ending:
            while self._open:
                name, logger = self._open.popitem()
                ending.callback(_blamed(name)(logger.end), summary)


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Within, an error says whose it is, and where in its code it was."""
    try:
        yield
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise LoggerError(
            f"the logger `{name}` failed: {type(error).__name__}: {error} (in {where.name} of "
            f"{where.filename}:{where.lineno})."
        ) from error
