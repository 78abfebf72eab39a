"""The transport between machines: which links it takes, epochs, and a run over it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Place, Plan
from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.transports.tcp import TRANSPORT, Address
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.runtime.instance.wiring import End
from hocket.system.events import Closed
from hocket.system.network.refusals import REFUSALS
from hocket.testing import difference
from hocket.testing.same_numbers import carried_out
from tests.cases import LEARN, SEED, distance, graph_of
from tests.forked import quick
from tests.runtime.channels.two_ends import greeted, message, planned, upwards
from tests.runtime.free.samples import plan_of
from tests.runtime.free.test_free import check_ledger

NAMED = replace(upwards(planned()), transport="tcp")


def test_it_takes_what_nothing_faster_can() -> None:
    ends = Ends((), (), one_process=False, share_memory=False)
    assert TRANSPORT.why_not(upwards(planned()), ends) == ""
    for near in (ends._replace(one_process=True), ends._replace(share_memory=True)):
        assert "a channel can name it" in TRANSPORT.why_not(upwards(planned()), near)
        assert TRANSPORT.why_not(NAMED, near) == ""
    assert TRANSPORT.room(NAMED) == 0


def test_an_address_can_be_sent() -> None:
    address = TRANSPORT.listen(NAMED, Here(sends=False))
    assert pickle.loads(pickle.dumps(address)) == address
    other = TRANSPORT.listen(NAMED, Here(sends=False))
    assert other.address == address.address and other.name != address.name
    for one in (address, other):
        TRANSPORT.connect(NAMED, one, Here(sends=False), 1).close()


def both(address: Address, sender: int, receiver: int) -> tuple[End, End]:
    """Connect both ends, which name these epochs."""
    ends = End(NAMED, TRANSPORT, Here(sends=True)), End(NAMED, TRANSPORT, Here(sends=False))
    for end, epoch in zip(ends, (sender, receiver), strict=True):
        end.connect(address, epoch)
    return ends


def send_three(sender: End) -> None:
    """Send one message more than there are slots, so that the last one needs the receiver."""
    for k in range(3):
        sender.send(message(k))


def test_a_sender_of_another_epoch_is_refused() -> None:
    before = REFUSALS.by_reason.get("unexpected", 0)
    sender, receiver = both(TRANSPORT.listen(NAMED, Here(sends=False)), 1, 2)
    with pytest.raises(Closed, match="does not expect this connection"):
        send_three(sender)
    assert REFUSALS.by_reason["unexpected"] == before + 1 and not receiver.box.ready()
    receiver.close()


def test_a_sender_with_an_old_address_is_refused() -> None:
    old = TRANSPORT.listen(NAMED, Here(sends=False))
    sender, receiver = both(old, 1, 1)
    greeted(sender, receiver)
    sender.send(message(1.0))
    late = End(NAMED, TRANSPORT, Here(sends=True))
    new, now = both(TRANSPORT.listen(NAMED, Here(sends=False)), 2, 2)
    late.connect(old, 1)
    with pytest.raises(Closed):
        send_three(late)
    new.send(message(2.0))
    assert float(np.asarray(next(iter(now.receive())))[0, 0, 0]) == 2.0
    for end in (sender, receiver, new, now):
        end.close()


@pytest.mark.parametrize("count", [16, 1 << 20])
def test_what_was_received_outlives_its_slot(count: int) -> None:
    """The slots are filled again, and JAX takes aligned memory without a copy."""
    link = replace(NAMED, arrays=(jax.ShapeDtypeStruct((count,), "float32"),))
    ends = End(link, TRANSPORT, Here(sends=True)), End(link, TRANSPORT, Here(sends=False))
    address = ends[1].listen()
    for end in ends:
        end.connect(address, 1)
    received = []
    for k in range(8):
        ends[0].send([np.full(count, k, np.float32)])
        received.append(jnp.asarray(ends[1].receive()[0]))
    assert [float(x.min()) for x in received] == [float(x.max()) for x in received] == [*range(8)]
    for end in ends:
        end.close()


PLACES = (Place("actor", ("env", "act"), replicas=2), Place("learner", LEARN))


def over_tcp(launch: str, up: Channel) -> Plan:
    channels = {"actor -> learner": up, "learner -> actor": replace(up, lag=0)}
    return Plan(graph_of("ppo"), PLACES, channels, launch=quick(launch))


def test_a_run_over_it_has_the_fused_numbers() -> None:
    assert distance(over_tcp("processes", Channel(transport="tcp")), "ppo", 3) <= 1e-5


def test_late_messages_are_those_of_threads() -> None:
    plans = [
        over_tcp("threads", Channel(lag=1)),
        over_tcp("processes", Channel(lag=1, transport="tcp")),
    ]
    one, other = (carried_out(plan, SEED, 4)[1] for plan in plans)
    assert difference(one, other) <= 1e-6


def test_free_samples_come_once_and_in_order() -> None:
    plan = plan_of()
    channels = {**plan.channels, "actor -> learner": Channel(transport="tcp")}
    executor = Split(replace(plan, channels=channels, launch=quick("processes")))
    executor.start(jax.random.key(0))
    metrics = advance(executor, 24)
    executor.load(executor.state(), executor.late())  # a new epoch, with samples under way
    more = advance(executor, 12)
    executor.close()
    check_ledger({name: np.concatenate([x, more[name]]) for name, x in metrics.items()})
