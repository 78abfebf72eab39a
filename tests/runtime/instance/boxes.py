"""Ends of links with nothing at the other end: a test puts messages in, and looks at those sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from hocket import Plan
from hocket.runtime.instance.account import Account
from hocket.runtime.instance.store import Store
from hocket.runtime.instance.wiring import End, ends
from hocket.runtime.observe.status import names, new_statuses


class Box:
    """An inbox that holds some messages, or an outbox that keeps the messages sent."""

    waited_ns = 0

    def __init__(self, messages: Sequence[Any] = ()) -> None:
        self.messages: deque[Any] = deque(messages)

    def send(self, message: Any) -> None:
        self.messages.append(message)

    def receive(self) -> Any:
        return self.messages.popleft()


def parts_of(plan: Plan, place: str, index: int, *, sends: bool) -> tuple[list[End], Store, Any]:
    """Return the ends of an instance, its store, and its account."""
    status = new_statuses(plan)[names(plan).index((place, index))]
    account = Account(plan, place, index, status)
    mine = [end for end in ends(plan, place, index, {}, account.work) if end.sends == sends]
    for end in mine:
        end.box = Box()
    return mine, Store(plan, place, index), account
