"""`metrics.jsonl`: a line of JSON for each row, in the folder of each seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from hocket.report.loggers import About, Numbers

NAME = "metrics.jsonl"


class Jsonl:
    """Writes the rows to `metrics.jsonl`, which `read_rows` reads.

    Every run with a folder has this logger.
    """

    def __init__(self) -> None:
        self._files: dict[int, TextIO] = {}

    def begin(self, about: About) -> None:
        for seed, folder in about.folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / NAME
            replace_text(path, "".join(map(_line, rows_until(path, about.last_step))))
            self._files[seed] = path.open("a")

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        row = {"iteration": numbers["iteration"], "env_steps": step, **numbers}
        self._files[seed].write(_line(row))
        self._files[seed].flush()

    def media(self, path: Path) -> None:
        """Do nothing: this file has rows of numbers only."""

    def end(self, summary: Mapping[str, Any]) -> None:
        for file in self._files.values():
            file.close()


LOGGER = Jsonl


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a file, without the last row if that is incomplete."""
    text = path.read_text(errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            # Only the last line can be incomplete, because a run is writing it or was killed.
            if not line.endswith("\n"):
                return
            raise ValueError(
                f"{path}:{number} is not a row of metrics: {error}. Remove that line."
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("env_steps"), (int, float)):
            raise ValueError(f"{path}:{number} has no number `env_steps`. Remove that line.")
        yield row


def rows_until(path: Path, last_step: int) -> Iterator[dict[str, Any]]:
    """Read the rows up to an environment step. A run that was killed may have left later rows."""
    return (row for row in read_rows(path) if row["env_steps"] <= last_step)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's contents atomically, so that a kill leaves either the old or the new."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
