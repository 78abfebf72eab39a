"""The transport of a link: its ends decide, unless the channel names one, which may be refused."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from hocket import Channel, Free, Pair, Place, Plan, PlanError, trace
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.runtime.channels import Ends, Transport
from hocket.runtime.channels.choice import (
    TRANSPORTS,
    check_transports,
    devices_of,
    ends_of,
    transport_of,
)
from hocket.runtime.channels.transports import device, same_device, shared_memory, tcp
from hocket.training.loop import make_executor
from tests.runtime.channels.two_ends import ACT, LEARN, planned, upwards
from tests.toys import Toy

CPU = (DeviceId("cpu", 0),)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, same_device),
        ({"learner": ("cpu:1",)}, device),
        ({"transport": "device"}, device),
        ({"launch": "processes"}, shared_memory),
        ({"launch": "processes", "transport": "tcp"}, tcp),
    ],
)
def test_the_transport_is_chosen_by_where_the_ends_are(options: Any, kind: Any) -> None:
    plan = planned(**options)
    assert transport_of(plan, upwards(plan)) is kind.TRANSPORT


def test_every_transport_is_whole_and_has_a_place_in_the_order() -> None:
    every = [TRANSPORTS[name] for name in TRANSPORTS.names]
    assert all(isinstance(transport, Transport) for transport in every)
    assert len({transport.preference for transport in every}) == len(every) >= 4


REFUSED = {
    "shared_memry": r"`actor -> learner`: unknown transport `shared_memry`.*`shared_memory`",
    "shared_memory": r"cannot use `shared_memory`: .*share no memory\..*name another: device",
    "one_gpu": r"cannot use `one_gpu`: it is for two processes",
    "hocket.core.plan.data:Plan": r"the transport `\S*:Plan` cannot be made: missing .* 'graph'",
    "hocket.runtime.launch:HERE": r"`\S*:HERE` is no transport: it has no `preference`, .*`listen`",
    "nowhere.py:X": r"`actor -> learner`: there is no file `nowhere.py`",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(PlanError, match=REFUSED[name]):
        check_transports(planned(transport=name))
    with pytest.raises(PlanError, match=REFUSED[name]):
        make_executor(planned(transport=name), 1)


def test_a_free_channel_goes_its_own_way() -> None:
    places = (Place("actor", ACT), Place("learner", LEARN))
    named = {"learner -> actor": Channel(transport="device")}
    plan = Plan(trace(Toy(), 8), places, named, schedule=Free(Pair("learner", "actor", max_age=1)))
    with pytest.raises(PlanError, match=r"`learner -> actor` names the transport `device`"):
        check_transports(plan)


def test_where_nothing_can_carry_a_link_all_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ends = planned(), Ends(CPU, CPU, one_process=False, share_memory=False)
    monkeypatch.setattr("hocket.runtime.channels.choice.ends_of", lambda *_: ends)
    assert transport_of(plan, upwards(plan)) is tcp.TRANSPORT
    monkeypatch.setattr(tcp.Tcp, "why_not", lambda *_: "there is no network here.")
    with pytest.raises(
        PlanError, match=r"no transport can carry `actor/0 -> learner/0` w"
    ) as caught:
        transport_of(plan, upwards(plan))
    assert all(f"  {name}: " in str(caught.value) for name in TRANSPORTS.names)


def test_what_is_named_is_what_carries() -> None:
    plan = planned(transport="device")
    assert ends_of(plan, upwards(plan)).one_process
    executor: Any = make_executor(plan, 1)
    executor.start(jax.random.key(0))
    actor = executor.crew.instances[0]
    carried = {end.link.transfer.source: end.transport for end in actor.ends}
    assert carried == {"actor": device.TRANSPORT, "learner": same_device.TRANSPORT}
    executor.close()


def test_an_instance_has_its_share_of_the_devices() -> None:
    on = [f"cpu:{k}" for k in range(4)]
    every = ("env", "act", "learn")
    apart = Plan(trace(Toy(), 8), (Place("actor", ACT, on, replicas=2), Place("learner", LEARN)))
    assert devices_of(apart, "actor", 1) == device_ids(["cpu:2", "cpu:3"])
    assert devices_of(apart, "learner", 0) == ()
    grouped = Plan(trace(Toy(), 8), (Place("all", every, on, replicas=2),))
    assert devices_of(grouped, "all", 0) == device_ids(on)  # the replicas are one program


def test_both_ends_of_a_link_are_told_the_same() -> None:
    for launch, one_process in (("threads", True), ("processes", False)):
        plan = planned(learner=("cpu:1",), launch=launch)
        ends = ends_of(plan, upwards(plan))
        assert ends == Ends(CPU, device_ids(["cpu:1"]), one_process, share_memory=not one_process)
