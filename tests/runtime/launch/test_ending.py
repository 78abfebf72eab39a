"""The end of a crew: every instance ends, and everything that was taken is given back."""

from __future__ import annotations

import gc

import jax
import pytest

import hocket
from hocket.runtime.distributed import Split
from hocket.testing import difference
from tests.faults import all_gone, is_gone, two, workers
from tests.toys import Toy


@pytest.mark.usefixtures("nothing_is_left")
def test_leaving_the_loop_ends_the_workers() -> None:
    reports = hocket.iterate(Toy(), distribute=two, launch="processes")
    report, pids = next(reports), workers()
    state = report.state
    assert sorted(pids) == ["actor/0", "learner/0"] and not any(map(is_gone, pids.values()))
    assert isinstance(report.executor, Split)
    crossed = report.executor.nbytes()
    reports.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert all_gone(pids)
    for _ in range(2):
        report.executor.close()
        assert difference(report.state, state) == 0.0
        assert report.executor.nbytes() == crossed
    with pytest.raises(RuntimeError, match="this run has ended"):
        report.executor.run(1)


@pytest.mark.usefixtures("nothing_is_left")
def test_forgetting_the_executor_ends_the_workers() -> None:
    executor = Split(hocket.plan(Toy(), distribute=two, launch="processes"))
    executor.start(jax.random.key(0))
    pids = workers()
    assert len(pids) == 2 and not any(map(is_gone, pids.values()))
    del executor
    gc.collect()
    assert all_gone(pids)
