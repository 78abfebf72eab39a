"""The transport between devices of one process."""

from __future__ import annotations

from typing import Any, cast

import jax

from hocket.core.plan.device_id import device_ids
from hocket.runtime.channels import Ends
from hocket.runtime.channels.transports.device import TRANSPORT
from tests.runtime.channels.two_ends import connected, message


def test_between_devices_an_array_arrives_where_it_is_wanted() -> None:
    sender, receiver = connected("device")
    sender.send(message(1.0))
    assert receiver.receive()[0].devices() == {jax.local_devices()[1]}


def test_the_sender_begins_the_copy() -> None:
    """The message that waits in the queue is on the receiver's device already."""
    sender, receiver = connected("device")
    sender.send(message(1.0))
    (_, (waiting,)), *_ = receiver.box._carrier.messages
    assert waiting.devices() == {jax.local_devices()[1]}


def test_it_is_for_threads_on_any_devices() -> None:
    apart = Ends(device_ids(["cpu:0"]), device_ids(["cpu:1"]), True, share_memory=False)
    assert TRANSPORT.why_not(cast(Any, None), apart) == ""
    why = TRANSPORT.why_not(cast(Any, None), apart._replace(one_process=False))
    assert "these are two processes" in why
