"""The outbox of an instance: each target gets its part, and the account counts it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hocket import Channel, Place, Plan, trace
from hocket.runtime.instance.outbox import InstanceOutbox
from hocket.runtime.observe.status import WORKING
from tests.runtime.instance.boxes import parts_of
from tests.toys import Toy

ENVS = (Place("env", ("env",), replicas=2), Place("rest", ("act", "learn")))
ACTORS = (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))


def sent(plan: Plan, place: str, value: Any) -> tuple[list[Any], Any]:
    """Send the first transfer of a place; return what each target got, and the account."""
    ends, store, account = parts_of(plan, place, 0, sends=True)
    transfer = ends[0].link.transfer
    account.spans = []
    outbox = InstanceOutbox(plan, ends, store, account)
    outbox.send(transfer, dict.fromkeys(transfer.values, value))
    mine = [end for end in ends if end.link.transfer == transfer]
    return [message for end in mine for message in end.box.messages], account


def test_each_target_has_its_environments() -> None:
    messages, account = sent(Plan(trace(Toy(), 8), ENVS), "rest", jnp.arange(8.0))
    assert [x.tolist() for (x,) in messages] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert account.status["sent"] == account.status["crossed"].sum() == 2 * 4 * 4
    assert (account.status["messages"], account.status["phase"]) == (2, WORKING)


def test_what_is_uniform_goes_to_all() -> None:
    messages, account = sent(Plan(trace(Toy(), 8), ACTORS), "learner", w := jnp.ones(4))
    assert len(messages) == 2 and all(x is w for (x,) in messages)
    assert account.status["sent"] == 2 * w.nbytes


def test_what_is_told_of_a_message() -> None:
    _, account = sent(Plan(trace(Toy(), 8), ACTORS), "learner", jnp.ones(4))
    told = [(span.kind, span.name, span.nbytes) for span in account.spans]
    assert told == [
        ("wait", "actor", 0), ("send", "learner/0 -> actor/0 #0", 16),
        ("wait", "actor", 0), ("send", "learner/0 -> actor/1 #0", 16),
    ]  # fmt: skip


def test_rows_of_one_program_go_out_whole() -> None:
    """The rows of replicas that run as one program arrive as environments of one batch."""
    learns = ("act", "learn")
    places = (Place("env", ("env",)), Place("rest", learns, replicas=2))
    plan = Plan(trace(Toy(), 8), places, {"rest -> env": Channel()})
    assert "rest" in plan.grouped
    ((message,),), _ = sent(plan, "rest", jnp.arange(8.0).reshape(2, 4))
    np.testing.assert_array_equal(message, np.arange(8.0))
