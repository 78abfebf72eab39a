"""The conformance kit for loggers: every row is kept, even if a run is killed and resumed."""

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
"""The step after which a run is killed, and the step of its last checkpoint."""


class LoggedRow(NamedTuple):
    """The arguments of one call of `Logger.row`."""

    step: int
    numbers: Numbers
    seed: int


@dataclass
class LoggerCheck:
    """The results of `check_logger`."""

    rows: int
    """The number of rows that the logger got in an uninterrupted run."""
    files: tuple[str, ...]
    """The files that the logger wrote in the run's folder."""
    compared: bool
    """True if the logger keeps records that could be compared; False if none were found."""

    def __str__(self) -> str:
        if not self.compared:
            return (
                f"ok: the logger took {self.rows} rows. It keeps nothing in the run's folder: give "
                f"`read` to compare what it keeps elsewhere."
            )
        return f"ok: {self.rows} rows are kept, even if the run is resumed: {self.files}"


def check_logger(
    logger: str | Callable[[], Logger], *, read: Callable[[Path], Any] | None = None
) -> LoggerCheck:
    """Verify in about a second that a logger keeps its contract.

        print(check_logger("mine.py:Mine"))
        print(check_logger(Mine, read=lambda folder: ask_the_server(folder.name)))

    The logger gets the rows of runs of two seeds, with evaluations and missing numbers, in a
    temporary folder. It must keep every number, and what it keeps of a run must not change if
    the run is killed and resumed. `read` takes the folder of a run, and returns what the logger
    keeps of it; by default, the files that the logger wrote there.
    """
    make = (lambda: make_logger(logger)) if isinstance(logger, str) else logger
    name = f"`{logger if isinstance(logger, str) else logger.__name__}`"
    read = read or _files
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        _check_early_end(make, run)
        rows = list(_rows())
        whole = _kept(make, run, rows, read)
        files = tuple(sorted(_files(run)))
        if not whole:
            return LoggerCheck(len(rows), files, compared=False)
        for changed, about in _changed(rows):
            if _kept(make, run, changed, read) == whole:
                raise ContractError(f"{name} does not keep {about}.")
        resumed = _kept_if_resumed(make, run, rows, read)
        if resumed != whole:
            raise ContractError(
                f"{name} does not keep the same records of a whole run and of a run that was "
                f"killed after step {KILLED} and resumed from step {LAST_STEP}. `begin` must "
                f"delete all rows after `about.last_step`, and a row must be safe when `row` "
                f"returns.\n"
                f"whole:\n{_shown(whole)}\nresumed:\n{_shown(resumed)}"
            )
    return LoggerCheck(len(rows), files, compared=True)


def _rows() -> Iterator[LoggedRow]:
    for iteration, step in enumerate(STEPS, 1):
        for seed in range(SEED, SEED + SEEDS):
            at = {"iteration": iteration, "seconds": 0.5 * iteration}
            mean = None if iteration == 1 else 10.0 * iteration + seed  # no episode has ended yet
            yield LoggedRow(
                step, {**at, "episodes": 2, "return_mean": mean, "loss": 1 / step}, seed
            )
            if iteration % 4 == 0:  # an evaluation has a row of its own
                yield LoggedRow(step, {**at, "eval_return_mean": 100.0 + seed}, seed)


def _changed(rows: list[LoggedRow]) -> Iterator[tuple[list[LoggedRow], str]]:
    """Yield copies of the rows with a single number changed, each with a description of it."""
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


def _log_to_the_end(
    make: Callable[[], Logger], run: Path, rows: list[LoggedRow], last_step: int = 0
) -> None:
    logger = _begun(make, run, last_step)
    for row in rows:
        if row.step > last_step:
            logger.row(*row)
    logger.media(run / "trace.json")
    logger.end({"finished": True, "env_steps": STEPS[-1], "return_mean": 80.0})


def _kept(
    make: Callable[[], Logger], run: Path, rows: list[LoggedRow], read: Callable[[Path], Any]
) -> Any:
    """Log a whole run, and return what the logger keeps of it."""
    shutil.rmtree(run, ignore_errors=True)
    _log_to_the_end(make, run, rows)
    return read(run)


def _kept_if_resumed(
    make: Callable[[], Logger], run: Path, rows: list[LoggedRow], read: Callable[[Path], Any]
) -> Any:
    """Log a run that is killed and resumed, and return what the logger keeps of it."""
    shutil.rmtree(run, ignore_errors=True)
    # Like a killed process, this logger is not ended before the next one begins.
    killed = _begun(make, run)
    for row in rows:
        if row.step <= KILLED:
            killed.row(*row)
    _log_to_the_end(make, run, rows, LAST_STEP)
    kept = read(run)
    killed.end({"finished": False, "error": "killed"})
    return kept


def _check_early_end(make: Callable[[], Logger], run: Path) -> None:
    """Check that the logger can be ended before the first row, in a new and in a resumed run."""
    for last_step in (0, LAST_STEP):
        shutil.rmtree(run, ignore_errors=True)
        _begun(make, run, last_step).end({"finished": False, "env_steps": 0, "error": "failed"})
        if (run / "config.json").read_text() != "{}":
            raise ContractError(
                "the logger has changed config.json, which belongs to the run: use other files."
            )


def _files(run: Path) -> dict[str, bytes]:
    paths = [path for path in run.rglob("*") if path.is_file() and path.name != "config.json"]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def _shown(kept: Any) -> str:
    lines = [f"{name}: {text!r}" for name, text in kept.items()] if isinstance(kept, dict) else []
    return "\n".join(line[:2000] for line in lines) or str(kept)[:2000]
