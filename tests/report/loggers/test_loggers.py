"""The loggers of this package keep the contract, and the kit finds those that do not."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto import event_pb2

from hocket import ContractError
from hocket.report.loggers import About, Numbers
from hocket.report.loggers.jsonl import Jsonl, read_rows
from hocket.testing import check_logger
from hocket.training.loggers import LOGGERS


def events(folder: Path) -> dict[tuple[str, str, int], float]:
    """The scalars of a run as TensorBoard shows them, by folder, name and step."""
    shown: dict[tuple[str, str, int], float] = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        where, data = file.parent.name, file.read_bytes()
        while data:  # a record: its length, a checksum, itself, a checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = vars(event_pb2)["Event"].FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.HasField("session_log"):  # whatever came from this step on was lost
                shown = {k: x for k, x in shown.items() if k[0] != where or k[2] < event.step}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    shown[where, value.tag, event.step] = value.simple_value
    return shown


def test_every_logger_is_checked() -> None:
    assert LOGGERS.names[:3] == ("display", "jsonl", "tensorboard")


def test_jsonl() -> None:
    check = check_logger("jsonl")
    assert check.files == ("seed-0/metrics.jsonl", "seed-1/metrics.jsonl")
    assert check.rows == 20 and "ok: 20 rows are kept" in str(check)


def test_tensorboard() -> None:
    check = check_logger("tensorboard", read=events)
    assert check.compared and len(check.files) == 2


def test_the_display_keeps_nothing() -> None:
    check = check_logger("display")
    assert not check.compared and "keeps nothing in the run's folder" in str(check)


class NeverForgets(Jsonl):
    """Goes on where it is, whatever was lost."""

    def begin(self, about: About) -> None:
        for seed, folder in about.folders.items():
            folder.mkdir(exist_ok=True)
            self._files[seed] = (folder / "metrics.jsonl").open("a")


class Buffers(Jsonl):
    """Writes when it is full, or at the end."""

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        self._files[seed].write(f'{{"env_steps": {step}, "numbers": {list(numbers.values())!r}}}')


class OneSeed(Jsonl):
    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        if seed == min(self._files):
            super().row(step, numbers, seed)


class FirstNames(Jsonl):
    """Keeps the columns of its first row, as tables do."""

    columns: tuple[str, ...] = ()

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        self.columns = self.columns or tuple(numbers)
        super().row(step, {name: numbers.get(name) for name in self.columns}, seed)


class Meddles(Jsonl):
    def begin(self, about: About) -> None:
        (about.folder / "config.json").write_text("{ }")
        super().begin(about)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (NeverForgets, r"killed after step 600 and resumed from step 400.*`begin` must delete"),
        (Buffers, r"a row must be safe when `row`"),
        (OneSeed, r"does not keep `loss` of seed 4 at step 800"),
        (FirstNames, r"does not keep `eval_return_mean` of seed"),
        (Meddles, r"changed config.json, which belongs to the run: use other"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_kit_finds_what_is_wrong(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(ContractError, match=f"(?s){message}"):
        check_logger(made)


def test_rows_that_were_told_after_the_last_step_are_gone(tmp_path: Path) -> None:
    """The file is whole at any moment: rows before are there before the first new one comes."""
    told: dict[str, Mapping[str, Any]] = {}

    class Looks(Jsonl):
        def begin(self, about: About) -> None:
            super().begin(about)
            rows = list(read_rows(about.folder / "seed-0/metrics.jsonl"))
            told[str(about.last_step)] = {"steps": [row["env_steps"] for row in rows]}

    check_logger(Looks)
    assert told["0"]["steps"] == []
    assert told["400"]["steps"] == [100, 200, 300, 400, 400]
