"""The kit for transports: ours pass it, and those that break the contract do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hocket.errors import ContractError
from hocket.runtime.channels import Here, Link
from hocket.runtime.channels.transports.same_device import (
    Queue,
    QueueInbox,
    QueueOutbox,
    SameDevice,
)
from hocket.testing import check_transport
from hocket.testing import transport as conformance
from hocket.testing.transport import sides


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("same_device", ["threads on one device"]),
        ("device", ["threads on one device", "threads on two devices"]),
        ("shared_memory", ["processes that share memory"]),
        (
            "tcp",
            [
                "threads on one device",
                "threads on two devices",
                "processes that share memory",
                "processes that share none",
            ],
        ),
    ],
)
def test_ours_pass(name: str, passed: list[str]) -> None:
    check = check_transport(name)
    assert check.passed == passed and len(check.passed) + len(check.refused) == 4
    assert f"  {passed[0]}: passed" in str(check)


class Cramped(SameDevice):
    """A transport with room for one message fewer than it should have."""

    def listen(self, link: Link, here: Here) -> Queue:
        return Queue(max(1, link.slots - 1), link.delay)


class Swapped(QueueInbox):
    """An inbox that hands over the newest message first."""

    def receive(self) -> Sequence[Any]:
        self._carrier.messages.reverse()
        return super().receive()


class Rounding(QueueOutbox):
    """An outbox that sends integers in fewer bits."""

    def send(self, arrays: Sequence[Any]) -> None:
        super().send([x.astype(np.int8) if x.dtype == np.int32 else x for x in arrays])


class Deaf(QueueInbox):
    """An inbox that never signals its event."""

    def wake(self, event: Any) -> None:
        pass


class Restless(QueueOutbox):
    """An outbox whose close wakes nobody."""

    def close(self) -> None:
        pass


class Miscounting(QueueInbox):
    """An inbox that starts to count again with each message."""

    def receive(self) -> Sequence[Any]:
        self.taken = 0
        return super().receive()


class Eager(QueueInbox):
    """An inbox that says it has a message when it has none."""

    def ready(self) -> bool:
        return True


class With(SameDevice):
    """A transport whose queue has other ends."""

    def __init__(self, outbox: type = QueueOutbox, inbox: type = QueueInbox) -> None:
        self._outbox, self._inbox = outbox, inbox

    def connect(self, link: Link, address: Queue, here: Here, epoch: int) -> Any:
        return self._outbox(address) if here.sends else self._inbox(address)


class Remembering(SameDevice):
    """A transport that keeps the messages of an earlier epoch."""

    def __init__(self) -> None:
        self._kept: dict[Any, Queue] = {}

    def listen(self, link: Link, here: Here) -> Queue:
        queue = Queue(link.slots, link.delay)
        if before := self._kept.get(key := (link.arrays, here.devices)):
            queue.messages.extend(before.messages)
        self._kept[key] = queue
        return queue


CRAMPED, SWAPPED, ROUNDING = Cramped(), With(inbox=Swapped), With(outbox=Rounding)
DEAF, RESTLESS, EAGER = With(inbox=Deaf), With(outbox=Restless), With(inbox=Eager)
MISCOUNTING, REMEMBERING = With(inbox=Miscounting), Remembering()

BROKEN = {
    "CRAMPED": "`send` of the first 3 messages, as many as there are slots, has not returned",
    "SWAPPED": "message 0 arrived with wrong numbers",
    "ROUNDING": r"a message arrived as .*int8.*, but its link carries .*int32",
    "DEAF": "a message does not signal the event of `wake`",
    "RESTLESS": "`send` of a link that its sender has closed has not returned",
    "EAGER": "`ready` is True before a message",
    "MISCOUNTING": "`taken` is 1 after 3 messages",
    "REMEMBERING": "`ready` is True in a new epoch",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_contract_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conformance, sides):
        monkeypatch.setattr(module, "SECONDS", 3.0)
    with pytest.raises(ContractError, match=BROKEN[name]):
        check_transport(f"{__name__}:{name}")


def test_a_transport_for_nothing_here() -> None:
    with pytest.raises(
        ContractError, match=r"`one_gpu` connects none of these pairs of ends:\n  th"
    ):
        check_transport("one_gpu")
