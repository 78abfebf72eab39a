"""Does a logger keep every row of a run, also of one that is killed and resumed?"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hocket.errors import ContractError
from hocket.report.loggers import About, Logger, Numbers
from hocket.report.outcome import Outcome
from hocket.training.folder import agent_folders
from hocket.training.loggers import make_logger

SEED, SEEDS = 3, 2
STEPS = range(100, 900, 100)
KILLED, LAST_STEP = 600, 400
"""The step after which a run is killed, and that of its last checkpoint."""


class LoggedRow(NamedTuple):
    """What a logger is told at once."""

    step: int
    numbers: Numbers
    seed: int


@dataclass
class LoggerCheck:
    """What `check_logger` found."""

    rows: int
    """How many rows it was told in a whole run."""
    files: tuple[str, ...]
    """What it wrote into the run's folder."""
    compared: bool
    """Whether it keeps something that could be compared."""

    def __str__(self) -> str:
        if not self.compared:
            return (
                f"ok: {self.rows} rows were told. It keeps nothing in the run's folder: give "
                f"`read` to have what it keeps elsewhere compared."
            )
        return f"ok: {self.rows} rows are kept, also of a run that is resumed: {self.files}"


def check_logger(
    logger: str | Callable[[], Logger], *, read: Callable[[Path], Any] | None = None
) -> LoggerCheck:
    """Verify that a logger keeps its contract, in a second and in a folder of its own.

    It is told of runs of two seeds, with evaluations and with numbers that are missing. What it
    keeps of a run that is killed in the middle and resumed must be what it keeps of a whole one,
    and every number must leave a trace. `read` gives what it keeps of the run in a folder, by
    default the files that it wrote there.

        print(check_logger("mine.py:Mine"))
        print(check_logger(Mine, read=lambda folder: ask_the_server(folder.name)))
    """
    make = (lambda: make_logger(logger)) if isinstance(logger, str) else logger
    kept = read or _files
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        _ended_early(make, run)
        rows = list(_rows())
        whole = _told(make, run, rows, kept)
        files = tuple(sorted(_files(run)))
        if not whole:
            return LoggerCheck(len(rows), files, compared=False)
        for changed, about in _changed(rows):
            if _told(make, run, changed, kept) == whole:
                raise ContractError(f"{_name(logger)} keeps nothing of {about}.")
        resumed = _resumed(make, run, rows, kept)
        if resumed != whole:
            raise ContractError(
                f"{_name(logger)} keeps something else of a run that was killed after step "
                f"{KILLED} and resumed from step {LAST_STEP} than of a whole one: `begin` forgets "
                f"what came after `about.last_step`, and what came before is safe when `row` "
                f"returns.\nwhole:\n{_shown(whole)}\nresumed:\n{_shown(resumed)}"
            )
    return LoggerCheck(len(rows), files, compared=True)


def _rows() -> Iterator[LoggedRow]:
    for iteration, step in enumerate(STEPS, 1):
        for seed in range(SEED, SEED + SEEDS):
            at = {"iteration": iteration, "seconds": 0.5 * iteration}
            ended = None if iteration == 1 else 10.0 * iteration + seed  # no episode at first
            yield LoggedRow(
                step, {**at, "episodes": 2, "return_mean": ended, "loss": 1 / step}, seed
            )
            if iteration % 4 == 0:  # an evaluation has a row of its own
                yield LoggedRow(step, {**at, "eval_return_mean": 100.0 + seed}, seed)


def _changed(rows: list[LoggedRow]) -> Iterator[tuple[list[LoggedRow], str]]:
    """The same run with one number changed, and which one that is."""
    for index in (len(rows) - 2, len(rows) - 1, len(rows) // 2):
        row = rows[index]
        name = list(row.numbers)[-1]
        other = row._replace(numbers={**row.numbers, name: -7.0})
        about = f"`{name}` of seed {row.seed} at step {row.step}"
        yield [*rows[:index], other, *rows[index + 1 :]], about


def _begun(make: Callable[[], Logger], run: Path, last_step: int = 0) -> Logger:
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text("{}")
    folders = agent_folders(run, SEED, SEEDS)
    progress = Outcome(run, "a run", SEEDS, STEPS[-1])
    logger = make()
    assert isinstance(logger, Logger)
    logger.begin(About("a run", run, folders, {"seed": SEED}, progress, last_step))
    return logger


def _told(
    make: Callable[[], Logger], run: Path, rows: list[LoggedRow], read: Callable[..., Any]
) -> Any:
    """What it keeps of a whole run."""
    shutil.rmtree(run, ignore_errors=True)
    logger = _begun(make, run)
    for row in rows:
        logger.row(*row)
    logger.media(run / "trace.json")
    logger.end({"finished": True, "env_steps": STEPS[-1], "return_mean": 80.0})
    return read(run)


def _resumed(
    make: Callable[[], Logger], run: Path, rows: list[LoggedRow], read: Callable[..., Any]
) -> Any:
    """What it keeps of a run that was killed and resumed."""
    shutil.rmtree(run, ignore_errors=True)
    killed = _begun(make, run)  # not ended: what it has not written is lost
    for row in rows:
        if row.step <= KILLED:
            killed.row(*row)
    logger = _begun(make, run, LAST_STEP)
    for row in rows:
        if row.step > LAST_STEP:
            logger.row(*row)
    logger.media(run / "trace.json")
    logger.end({"finished": True, "env_steps": STEPS[-1], "return_mean": 80.0})
    kept = read(run)
    killed.end({"finished": False, "error": "killed"})
    return kept


def _ended_early(make: Callable[[], Logger], run: Path) -> None:
    """A run that fails before its first row, and a logger that is new to a run that goes on."""
    for last_step in (0, LAST_STEP):
        shutil.rmtree(run, ignore_errors=True)
        _begun(make, run, last_step).end({"finished": False, "env_steps": 0, "error": "failed"})
        if (run / "config.json").read_text() != "{}":
            raise ContractError("config.json is the run's, and the logger has changed it.")


def _files(run: Path) -> dict[str, bytes]:
    paths = [path for path in run.rglob("*") if path.is_file() and path.name != "config.json"]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def _shown(kept: Any) -> str:
    lines = [f"{name}: {text!r}" for name, text in kept.items()] if isinstance(kept, dict) else []
    return "\n".join(line[:2000] for line in lines) or str(kept)[:2000]


def _name(logger: str | Callable[[], Logger]) -> str:
    return f"`{logger}`" if isinstance(logger, str) else f"`{logger.__name__}`"
