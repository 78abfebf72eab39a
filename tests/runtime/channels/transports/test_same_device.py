"""The transport between threads on one device."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hocket.core.plan.device_id import device_ids
from hocket.runtime.channels import Ends
from hocket.runtime.channels.link_end import WRITER
from hocket.runtime.channels.transports.same_device import TRANSPORT, Queue
from hocket.system.events import Closed
from tests.runtime.channels.two_ends import connected, message


def test_on_one_device_nothing_is_copied() -> None:
    (x,), (sender, receiver) = message(1.0), connected("same")
    sender.send([x])
    assert receiver.receive()[0] is x


@pytest.mark.parametrize(
    ("source", "target", "one_process", "why"),
    [
        ("cpu:1", "cpu:1", True, ""),
        ("cpu:1", "cpu:2", True, "these are on different ones"),
        ("cpu:1", "cpu:1", False, "these are two processes"),
    ],
)
def test_it_is_for_threads_on_one_device(
    source: str, target: str, one_process: bool, why: str
) -> None:
    ends = Ends(device_ids([source]), device_ids([target]), one_process, share_memory=False)
    reason = TRANSPORT.why_not(cast(Any, None), ends)
    assert why in reason and bool(reason) == bool(why)


def test_on_a_closed_queue_nobody_waits_or_goes_on() -> None:
    queue = Queue(slots=1)
    with queue.changed:
        queue.wait(WRITER, lambda: True)
    queue.close()
    with queue.changed, pytest.raises(Closed):
        queue.wait(WRITER, lambda: True)
