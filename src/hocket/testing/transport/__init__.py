"""The conformance kit for transports, between threads and between processes.

__init__.py   the checks, which send commands to the two sides of a link
sides.py      the two sides, in one process or in two, which carry out commands
__main__.py   the side in the other process
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from hocket.cluster.devices import id_of
from hocket.errors import ContractError
from hocket.runtime.channels import Ends
from hocket.runtime.channels.choice import TRANSPORTS
from hocket.runtime.channels.links import Link
from hocket.testing.transport.sides import SECONDS, SLOTS, Tell, both_sides, kinds


@dataclass
class TransportCheck:
    """The results of `check_transport`. Printing them shows a line for each pair of ends."""

    passed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """For each pair of ends that the transport cannot connect, the reason."""

    def __str__(self) -> str:
        lines = [f"  {name}: passed" for name in self.passed]
        lines += [f"  {name}: refused: {why}" for name, why in self.refused.items()]
        return "\n".join([*lines, f"ok: {len(self.passed)} pairs of ends passed"])


def check_transport(name: str) -> TransportCheck:
    """Verify that a transport keeps its contract. Its `name` is as in `Channel(transport=...)`.

        print(check_transport("shared_memory"))
        print(check_transport("my_file.py:FIFO"))

    The contract, for all pairs of ends that the transport can connect: Before anybody receives,
    each side can send as many messages of 8 MiB as a link has slots. Arrays of every type arrive
    whole and in order, even if only one end joins small arrays into a block. Closing either end
    wakes both. Once the ends connect again, no earlier message arrives. Raise a `ContractError` if
    the transport breaks the contract.
    """
    transport, check = TRANSPORTS[name], TransportCheck()
    for title, ends in _pairs().items():
        links = [replace(link, transport=name) for link in _links()]
        if why := next(filter(None, (transport.why_not(link, ends) for link in links)), ""):
            check.refused[title] = why
            continue
        with both_sides(name, transport, ends) as (one, other):
            _Check(title, one, other).run()
        check.passed.append(title)
    if not check.passed:
        why = "\n".join(f"  {title}: {reason}" for title, reason in check.refused.items())
        raise ContractError(f"the transport `{name}` connects none of these pairs of ends:\n{why}")
    return check


def _pairs() -> dict[str, Ends]:
    first, *others = map(id_of, jax.local_devices())
    one, other = (first,), (others[0] if others else first,)
    return {
        "threads on one device": Ends(one, one, one_process=True, share_memory=False),
        "threads on two devices": Ends(one, other, one_process=True, share_memory=False),
        "processes that share memory": Ends(one, one, one_process=False, share_memory=True),
        "processes that share none": Ends(one, one, one_process=False, share_memory=False),
    }


def _links() -> list[Link]:
    return [kind.link for kind in kinds() if kind.link.arrays]


class _Check:
    """The checks for one pair of ends."""

    def __init__(self, title: str, one: Tell, other: Tell) -> None:
        self._title, self._sides, self._epoch = title, (one, other), 0

    def run(self) -> None:
        self._room_for_all()
        for number in range(2, len(kinds())):
            self._values(number)
        for closer in ("sender", "receiver"):
            for waiting in ("send", "receive"):
                self._closing(closer, waiting)
        self._events()

    def _room_for_all(self) -> None:
        """Check that both sides can fill all slots of their links before anybody receives."""
        ends = [self._connect(number) for number in (0, 1)]
        for number, (_, receiver) in enumerate(ends):
            self._is(
                not self._take(receiver("ready", number), "ready"),
                "`ready` is True before a message",
            )
        sending = [sender("send", n, 0, SLOTS) for n, (sender, _) in enumerate(ends)]
        for told in sending:
            self._take(told, f"`send` of the first {SLOTS} messages, as many as there are slots,")
        for number, (sender, receiver) in enumerate(ends):
            self._is(
                self._take(receiver("wait_ready", number), "ready"),
                "`ready` stays False after messages",
            )
            self._take(receiver("receive", number, 0, SLOTS), "`receive`")
            self._is(
                not self._take(receiver("ready", number), "ready"), "`ready` is True after the last"
            )
            for end, name in ((sender, "sent"), (receiver, "taken")):
                count, _ = self._take(end("counts", number, name), f"`{name}`")
                self._is(count == SLOTS, f"`{name}` is {count} after {SLOTS} messages")
            self._take(sender("close", number), "`close`")

    def _values(self, number: int) -> None:
        """Check that messages arrive whole, even if there are more of them than slots.

        One message is never received. It must be gone when the ends connect again.
        """
        sender, receiver = self._connect(number)
        sending = sender("send", number, 0, 4)
        self._take(receiver("receive", number, 0, 4), "`receive`")
        self._take(sending, "`send`")
        self._take(sender("send", number, 4, 1), "`send`")
        self._take(sender("close", number), "`close`")
        self._take(receiver("close", number), "`close` of a closed link")
        sender, receiver = self._connect(number)
        self._is(
            not self._take(receiver("ready", number), "ready"), "`ready` is True in a new epoch"
        )
        self._take(sender("send", number, 7, 1), "`send`")
        self._take(receiver("receive", number, 7, 1), "`receive`")
        self._take(sender("close", number), "`close`")

    def _closing(self, closer: str, waiting: str) -> None:
        number = 0 if waiting == "send" else 2
        sender, receiver = self._connect(number)
        ends = {"sender": sender, "receiver": receiver}
        who = sender if waiting == "send" else receiver
        waits = who("until_closed", number, waiting)
        # By now `who` most likely waits. If it is late, its wait must end just the same.
        time.sleep(0.2)
        self._take(ends[closer]("close", number), "`close`")
        self._take(waits, f"`{waiting}` of a link that its {closer} has closed")

    def _events(self) -> None:
        sender, receiver = self._connect(2)
        self._take(receiver("wake", 2), "`wake`")
        waits = receiver("event", 2)
        self._take(sender("send", 2, 0, 1), "`send`")
        self._is(self._take(waits, "an event"), "a message does not signal the event of `wake`")
        self._take(sender("close", 2), "`close`")

    def _connect(self, number: int) -> tuple[Tell, Tell]:
        self._epoch += 1
        one, other = self._sides
        sender, receiver = (other, one) if kinds()[number].back else (one, other)
        address = self._take(receiver("listen", number), "`listen`")
        for end in (
            sender,
            receiver,
        ):  # one by one, so that a `connect` that waits for the other fails
            connecting = end("connect", number, address, self._epoch, end is sender)
            self._take(connecting, "`connect`, which may not wait for the other end,")
        return sender, receiver

    def _take(self, told: Future[Any], what: str) -> Any:
        try:
            return told.result(SECONDS)
        except NotInTime:
            raise ContractError(
                f"{what} has not returned for {SECONDS:g} seconds ({self._title})."
            ) from None

    def _is(self, well: bool, what: str) -> None:
        if not well:
            raise ContractError(f"{what} ({self._title}).")
