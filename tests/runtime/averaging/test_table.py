"""Replicas agree on a way to average, and the table says which one and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import PlanError
from hocket.report.outcome import Outcome
from hocket.runtime.averaging.table import agree, choose, only
from hocket.training.summary import note_reductions, write_summary
from tests.runtime.averaging.replicas import FOUR, MPS, TWO, asked


def test_the_cheapest_way_of_the_slowest_replica_is_chosen() -> None:
    table = choose(asked(MPS), {"shm": [3e-4, 2e-4], "ipc": [1e-5, 9e-4]})
    assert table.chosen == "shm"
    assert {row.way: row.seconds for row in table.rows} == {
        "shm": 3e-4, "tcp": None, "ipc": 9e-4, "nccl": None, "hier": None,
    }  # fmt: skip
    table = choose(asked(MPS), {"shm": [3e-4, 2e-4], "ipc": [1e-5, 2e-5]})
    assert table.chosen == "ipc" and table.sentence.endswith(
        "`ipc` in 20 us a call, against `shm` 300 us"
    )
    lines = str(table).splitlines()
    assert lines[3].startswith("> ipc") and "20 us" in lines[3] and "MiB/s" in lines[3]
    assert "arrays of CPUs" in lines[2]
    assert "one process per device" in lines[4] and "on one device" in lines[5]


def test_a_way_that_fails_in_one_replica_is_not_chosen() -> None:
    table = choose(asked(MPS), {"shm": [3e-4, 2e-4], "ipc": [1e-5, "no NVRTC"]})
    assert table.chosen == "shm"
    assert next(row.note for row in table.rows if row.way == "ipc") == "no NVRTC (replica 1)"
    with pytest.raises(PlanError, match=r"no way to average works .*`shm`: a \(replica 0\)"):
        choose(asked(MPS), {"shm": ["a"] * 2, "ipc": ["b"] * 2})


def test_with_one_way_nothing_is_measured() -> None:
    table = only(asked(TWO))
    assert table and table.chosen == "shm" and not table.was_measured
    assert "not measured: the only way here" in str(table)
    assert only(asked(FOUR)) is None
    wanted = only(asked(FOUR, "hier"))
    assert wanted and wanted.chosen == "hier" and "`hier` was asked for" in wanted.rows[0].note


def test_a_run_says_what_was_chosen_and_keeps_the_table(tmp_path: Path) -> None:
    table = choose(asked(MPS), {"shm": [3e-4] * 2, "ipc": [1e-5] * 2})
    outcome = Outcome(tmp_path, "ppo", 1, 100, return_means=[1.0])
    for _ in range(2):  # every report has it, but it is noted once
        note_reductions(outcome, {"slice": table})
    assert outcome.notes == [f"slice: {table.sentence}"] and "`ipc` in 10 us" in outcome.notes[0]
    write_summary(outcome, 0)
    kept = json.loads((tmp_path / "summary.json").read_text())["reductions"]["slice"]
    assert kept["chosen"] == "ipc" and kept["rows"][2]["seconds"] == 1e-5
    alone = Outcome(tmp_path, "ppo", 1, 100)
    unmeasured = only(asked(TWO))
    assert unmeasured
    note_reductions(alone, {"slice": unmeasured})
    assert alone.notes == [] and alone.reductions["slice"]["chosen"] == "shm"


class Asked:
    """A run that answers for its replicas, and notes the commands."""

    def __init__(self, **seconds: float | str) -> None:
        self.seconds, self.commands = seconds, list[Any]()

    def __call__(self, command: str, *arguments: Any) -> list[Any]:
        self.commands.append((command, *arguments))
        if command == "listen":
            way, is_trial = arguments
            return [f"{way}, trial={is_trial}"] * 2
        return [self.seconds[arguments[0]]] * 2 if command == "measure" else [None] * 2


def test_replicas_with_one_way_join_by_it() -> None:
    ask = Asked()
    assert agree(asked(TWO), ask, epoch=5).chosen == "shm"
    assert ask.commands == [
        ("listen", "shm", False), ("join", "shm", ["shm, trial=False"] * 2, 5),
    ]  # fmt: skip


def test_replicas_listen_for_every_way_before_they_measure_any() -> None:
    ask = Asked(shm=3e-4, ipc=1e-5)
    assert agree(asked(MPS), ask, epoch=1).chosen == "ipc"
    trial = {way: [f"{way}, trial=True"] * 2 for way in ("shm", "ipc")}
    assert ask.commands == [
        ("listen", "shm", True), ("listen", "ipc", True),
        ("measure", "shm", trial["shm"], 1), ("measure", "ipc", trial["ipc"], 1),
        ("listen", "ipc", False), ("join", "ipc", ["ipc, trial=False"] * 2, 1),
    ]  # fmt: skip


def test_replicas_whose_ways_all_fail_join_by_none() -> None:
    ask = Asked(shm="no memory", ipc="no driver")
    with pytest.raises(PlanError, match=r"`shm`: no memory \(replica 0\); `ipc`: no driver"):
        agree(asked(MPS), ask)
    assert ask.commands[-1][0] == "measure"
