"""The inbox of an instance: parts are joined, and late messages are kept and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Place, Plan, trace
from hocket.runtime.channels.packing import packing
from hocket.runtime.instance.inbox import InstanceInbox
from hocket.runtime.launch import launch_named
from hocket.runtime.observe.status import RECEIVING
from tests.runtime.instance.boxes import Box, parts_of
from tests.toys import Toy

ACTORS = (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))


def plan_of(lag: int = 0, launch: str = "threads", **options: Any) -> Plan:
    channels = {"learner -> actor": Channel(lag=lag, **options)}
    return Plan(trace(Toy(), 8), ACTORS, channels, launch=launch_named(launch))


def inbox_of(plan: Plan, place: str, index: int, messages: Mapping[int, Sequence[Any]]) -> Any:
    """Return an inbox that holds these messages by source, their transfer, and the status."""
    ends, store, account = parts_of(plan, place, index, sends=False)
    for end in ends:
        end.box = Box(messages[end.link.source])
    return InstanceInbox(plan, ends, store, account), ends[0].link.transfer, account.status


def weights(*numbers: float) -> list[Any]:
    """Return messages of the learner's parameters, each a vector filled with one number."""
    return [[jnp.full(4, number)] for number in numbers]


def test_shares_of_the_environments_are_joined() -> None:
    plan = plan_of()
    points = jnp.arange(3 * 8 * 4.0).reshape(3, 8, 4)
    halves = {k: [[points[:, 4 * k : 4 * k + 4]]] for k in range(2)}
    inbox, transfer, status = inbox_of(plan, "learner", 0, halves)
    wait = inbox.wait_for(transfer)
    assert (wait.phase, wait.peers, wait.ready) == (RECEIVING, (0, 1), None)
    ((value, joined),) = inbox.receive(transfer).items()
    assert value == transfer.values[0] and joined.devices() == {jax.local_devices()[0]}
    np.testing.assert_array_equal(joined, points)
    assert status["moves"] == 2


def numbers(inbox: InstanceInbox, transfer: Any, count: int) -> list[float]:
    """Return the numbers that the next iterations receive."""
    return [float(inbox.receive(transfer)[transfer.values[0]][0]) for _ in range(count)]


def test_a_late_reader_has_the_first_message_for_those_to_come() -> None:
    inbox, transfer, _ = inbox_of(plan_of(lag=2), "actor", 1, {0: weights(1, 2, 3)})
    assert inbox.wait_for(transfer).peers == (0,)
    assert numbers(inbox, transfer, 1) == [1]
    assert inbox.wait_for(transfer) is None  # the message is here already
    assert numbers(inbox, transfer, 3) == [1, 1, 2]


def test_after_a_block_what_is_late_is_here() -> None:
    inbox, transfer, _ = inbox_of(plan_of(lag=2), "actor", 1, {0: weights(1, 2, 3, 4, 5, 6)})
    assert numbers(inbox, transfer, 3) == [1, 1, 1]
    inbox.catch_up()
    assert len(inbox.ends[transfer.id, 0].box.messages) == 3
    late = inbox.late()
    assert [float(x[0]) for x in late.values()] == [2, 3]
    assert numbers(inbox, transfer, 3) == [2, 3, 4]
    inbox.load(late)
    assert numbers(inbox, transfer, 3) == [2, 3, 5]
    inbox.load({})
    assert numbers(inbox, transfer, 3) == [6, 6, 6]


def test_what_was_saved_for_others_is_left() -> None:
    """Late values of another plan, or of host functions, leave this inbox to begin anew."""
    inbox, transfer, _ = inbox_of(plan_of(lag=1), "actor", 1, {0: weights(1, 2)})
    inbox.load({"host/actor/0": np.zeros(8, np.uint8)})
    assert numbers(inbox, transfer, 3) == [1, 1, 2]


@pytest.mark.parametrize("pack", [True, False])
def test_saved_messages_are_as_those_of_the_link(pack: bool) -> None:
    """Messages that were saved and those of the link become the same values, packed or not."""
    places = (Place("actor", ("env", "act")), Place("learner", ("learn",)))
    channel = Channel(lag=1, pack=pack)
    graph = trace(Toy(), 8)
    plan = Plan(graph, places, {"actor -> learner": channel}, launch=launch_named("processes"))
    ends, store, account = parts_of(plan, "learner", 0, sends=False)
    (end,) = ends
    how = packing(end.link.arrays)
    messages = [
        [np.full(x.shape, k + j, x.dtype) for j, x in enumerate(end.link.arrays)] for k in range(3)
    ]
    slots = [how.to_slot(message, packed=end.link.packed) for message in messages]
    end.box = Box(slots[:2])
    inbox = InstanceInbox(plan, ends, store, account)
    expected = [inbox.receive(end.link.transfer) for _ in range(3)]
    end.box = Box(slots[1:])
    (names,) = inbox._late[end.link.key[:2]]
    inbox.load(dict(zip(names, messages[0], strict=True)))
    received = [inbox.receive(end.link.transfer) for _ in range(2)]
    for before, after in zip((expected[0], expected[2]), received, strict=True):
        jax.tree.map(np.testing.assert_array_equal, before, after)
