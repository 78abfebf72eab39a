"""The cores of this process, and how they are divided."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hocket.system.cores import CORES, MOST_CORES, part_of_cores, usable_cores


@pytest.mark.parametrize(
    ("mine", "count", "parts"),
    [
        ({0, 1, 2, 3}, 2, [[0, 1], [2, 3]]),
        ({0, 1, 2}, 2, [[0], [1, 2]]),
        ({5, 7}, 4, [[5], [5], [7], [7]]),
        ({3}, 1, [[3]]),
    ],
)
def test_every_part_has_a_core(
    mine: set[int], count: int, parts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine)
    assert [part_of_cores(i, count) for i in range(count)] == parts
    assert usable_cores() == len(mine)


def test_a_process_keeps_to_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    code = "from hocket.system.cores import *; keep_to_cores(); print(usable_cores())"
    for given, count in ((str(core), 1), (":1", 1), (":999", usable_cores())):
        env = {**os.environ, CORES: given}
        assert subprocess.check_output([sys.executable, "-c", code], env=env) == b"%d\n" % count


def test_a_process_may_use_fewer_cores_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for given, count in (("3", 3), ("8", 4), ("", 4)):
        monkeypatch.setenv(MOST_CORES, given)
        assert usable_cores() == count
