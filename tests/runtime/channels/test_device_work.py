"""The work that an instance has begun on its device, and what its status says meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hocket.runtime.channels.device_work import DeviceWork, is_busy
from hocket.runtime.observe.status import RECEIVING, SENDING, WORKING


def array(*, ready: bool) -> Any:
    return SimpleNamespace(is_ready=lambda: ready)


def test_each_end_has_its_last_work() -> None:
    work = DeviceWork({"phase": WORKING})
    slow, done = array(ready=False), array(ready=True)
    work.begun("one", slow)
    work.begun("other", done)
    since = work.since()
    assert since == [slow, done] and is_busy(since)
    work.begun("one", done)
    assert not is_busy(work.since())
    assert is_busy(since)  # what had begun before is asked about as it was
    assert not is_busy([])


def test_settling_is_work_and_not_a_wait() -> None:
    """Otherwise two instances that wait for their own devices would look like a deadlock."""
    status, seen = {"phase": SENDING}, list[tuple[str, int]]()
    work = DeviceWork(status)
    for end in ("one", "other"):
        work.add(lambda end=end: seen.append((end, status["phase"])))
    work.settle()
    assert seen == [("one", WORKING), ("other", WORKING)]
    assert status["phase"] == SENDING  # it goes on waiting


def test_a_wait_that_is_over_is_shown_as_work() -> None:
    status = {"phase": RECEIVING}
    DeviceWork(status).resume()
    assert status["phase"] == WORKING


def test_a_run_that_begins_anew_has_no_work() -> None:
    settled: list[bool] = []
    work = DeviceWork({"phase": WORKING})
    work.add(lambda: settled.append(True))
    work.begun("one", array(ready=False))
    work.forget()
    work.settle()
    assert work.since() == [] and settled == []
