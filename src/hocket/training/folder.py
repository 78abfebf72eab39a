"""The folder of a run. No other module knows the layout of `runs/NAME`:

config.json              the configuration: all that the run depends on
metrics.jsonl            a line for each row of metrics (`report/loggers/jsonl.py`)
summary.json             the results (`summary.py`)
checkpoints/             the states (`runtime/checkpoint.py`); damaged ones go to refused/
seed-0/, seed-1/, ...    the metrics and the summary of each seed, if there are several
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket import __version__, algorithms, envs
from hocket.core.program.describe import describe
from hocket.errors import unknown
from hocket.report.loggers.jsonl import NAME as METRICS
from hocket.report.loggers.jsonl import replace_text, rows_until
from hocket.runtime.checkpoint import Checkpoints
from hocket.training.homes import with_present_settings

CONFIG, SUMMARY, CHECKPOINTS = "config.json", "summary.json", "checkpoints"

LOGS = "logs"
"""The folder for what instances on other nodes print."""
# Settings that may change when a run is resumed, because they change no number.
MAY_CHANGE = {
    "title", "hocket", "distribute", "launch", "cluster", "ship", "lease", "wait", "name",
    "save_every", "keep", "loggers", "eval_every", "eval_episodes",
}  # fmt: skip


def configuration(algorithm: Any, settings: Any) -> dict[str, Any]:
    """Return all settings that a run depends on, in the form of `config.json`."""
    return {
        "title": f"{algorithms.name_of(algorithm)} on {envs.name_of(algorithm.env)}",
        "algorithm": describe(algorithm, type(algorithm).__name__),
        **{name: value for name, value in settings.__dict__.items() if name != "runs"},
        "hocket": __version__,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration in a run's folder, or in any file of the same form."""
    path = folder / CONFIG if folder.is_dir() else folder
    try:
        config = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a configuration: {error}.") from error
    for name in ("algorithm", "seed", "seeds"):
        if not isinstance(config, dict) or name not in config:
            raise ValueError(f"{path} is not the configuration of a run: it has no `{name}`.")
    return with_present_settings(config)


def as_planned(algorithm: Any, num_envs: int, old: Path | None) -> Any:
    """Return the algorithm with the `num_envs` that the strategy chose.

    Raise if the run to resume, in the folder `old`, began with another number of environments.
    """
    if algorithm.num_envs == num_envs:
        return algorithm
    began = read_config(old) if old else {}
    before = began["algorithm"]["num_envs"] if began else num_envs
    if before != num_envs:
        raise ValueError(
            f"{old} began with {before:,} environments, but the strategy now chooses {num_envs:,}: "
            f"resume it with --num-envs {before} --distribute {began['distribute'] or 'anakin'}."
        )
    return replace(algorithm, num_envs=num_envs)


def check_unchanged(folder: Path, config: dict[str, Any]) -> None:
    """Raise if a setting that changes numbers has another value than when the run began."""
    before, after = flat(read_config(folder)), flat(json.loads(json.dumps(config)))
    changed = [
        f"{name.removeprefix('algorithm.')} was {before.get(name)!r} and is {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if name not in MAY_CHANGE and before.get(name) != after.get(name)
    ]
    if changed:
        raise ValueError(
            f"{folder} cannot be resumed with another configuration: {'; '.join(changed)}. Use "
            f"the old values, or leave --resume out to start a new run."
        )


def has_checkpoints(folder: Path) -> bool:
    """Return True if a run has a checkpoint. Does not import Orbax, which takes a while."""
    return any(path.name.isdigit() for path in (folder / CHECKPOINTS).glob("*"))


def checkpoints_of(folder: Path, keep: int = 3) -> Checkpoints:
    """Return the checkpoints of a run. A save deletes all but the last `keep` and the best."""
    return Checkpoints(folder / CHECKPOINTS, keep)


def find_run(run: Path) -> Path:
    """Return the folder of a run, given its path or its name in `runs`."""
    for folder in (run, Path("runs") / run):
        if (folder / CONFIG).exists():
            return folder
    # `run` may be a folder of runs, or a misspelled name beside other runs: suggest these runs.
    for folder in (run, run.parent, Path("runs")):
        if names := _runs_in(folder):
            raise ValueError(unknown("run", run.name, names, where=f"in {folder}"))
    raise ValueError(
        f"there is no run `{run}`, and the folder `runs` has no other run: start one with "
        f"`hocket train`."
    )


def _runs_in(folder: Path) -> list[str]:
    return [path.parent.name for path in sorted(folder.glob(f"*/{CONFIG}"))]


def new_folder(runs: Path, title: str, name: str | None) -> Path:
    """Make the folder of a new run: `name`, or by default the title with the next number.

    Making the folder also claims it, so two runs that start at once get two folders.
    """
    folder = runs / (name or f"{_slug(title)}-{max([0, *_numbers(runs, title)]) + 1}")
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if name is None:
            return new_folder(runs, title, name)
        raise ValueError(
            f"there is already a run in {folder}: continue it with --resume, or choose another "
            f"--name."
        ) from None
    return folder


def old_folder(runs: Path, title: str, name: str | None) -> Path:
    """Return the folder of the run to resume: `name`, or by default the last with this title."""
    if name is not None:
        return find_run(runs / name)
    numbers = _numbers(runs, title)
    if not numbers:
        raise ValueError(
            f"there is no run of {title} in {runs} to resume: leave --resume out, or give --name."
        )
    return runs / f"{_slug(title)}-{max(numbers)}"


def clear_records(folder: Path) -> None:
    """Remove the metrics and summaries of a run that starts again from the beginning."""
    for name in (METRICS, SUMMARY):
        for path in (*folder.glob(name), *folder.glob(f"seed-*/{name}")):
            path.unlink()


def agent_folders(folder: Path, seed: int, seeds: int) -> dict[int, Path]:
    """Return the folder of each seed's records: the run's folder, or `seed-I` if there are several.

    `I` counts from 0, whatever the first seed is.
    """
    if seeds == 1:
        return {seed: folder}
    return {seed + i: folder / f"seed-{i}" for i in range(seeds)}


def metrics_files(folder: Path) -> list[Path]:
    """Return the metrics file of each agent of a run, in order."""
    each = sorted(folder.glob(f"seed-*/{METRICS}"), key=lambda path: (len(str(path)), path))
    files = [folder / METRICS] if (folder / METRICS).is_file() else each
    if not files:
        raise ValueError(
            f"`{folder}` has no {METRICS}, nor seed-0/{METRICS}: the run has written nothing yet."
        )
    return files


def rows_before(folders: Iterable[Path], last_step: int) -> list[list[dict[str, Any]]]:
    """Read the rows of each agent up to the environment step from which the run resumes."""
    return [list(rows_until(folder / METRICS, last_step)) for folder in folders]


def write_json(path: Path, value: Any) -> None:
    replace_text(path, json.dumps(value, indent=2) + "\n")


def _numbers(runs: Path, title: str) -> list[int]:
    start = f"{_slug(title)}-"
    ends = (path.name.removeprefix(start) for path in runs.glob(f"{start}*"))
    return [int(end) for end in ends if end.isdigit()]


def _slug(title: str) -> str:
    return re.sub(r"[^\w.]+", "-", title.replace(" on ", " ")).strip("-")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a configuration into settings by path, such as `algorithm.env.gravity`."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        settings |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return settings
