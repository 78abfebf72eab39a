"""Links: who sends to whom, which values, and how their arrays lie in a message."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from hocket import Channel, Free, Pair, Place, Plan, fragment, trace
from hocket.core.plan.traffic import pairs
from hocket.runtime.channels.links import links, version_specs, versions
from tests.core.tiny import NUM_ENVS, State, act, env, learn, traced
from tests.runtime.channels.two_ends import ACT, LEARN, planned, upwards
from tests.toys import Toy


def test_what_a_message_is_made_of() -> None:
    """A slot has the same bytes whether an end packs or not."""
    arrays = (jax.ShapeDtypeStruct((3,), "bool"), jax.ShapeDtypeStruct((), jax.random.key(0).dtype))
    link = replace(upwards(planned()), arrays=arrays)
    packed = replace(link, packed=True)
    assert [spec for spec, _ in packed.specs] == [(32,)]
    assert link.message_nbytes == packed.message_nbytes == 128
    buffer = bytearray(128)
    flags, key = link.views(buffer)
    flags[:], key[:] = [True, False, True], [7, 8]
    (words,) = packed.views(buffer)
    assert words[0] == 0x010001 and list(words[16:18]) == [7, 8]


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        (4, 2, [(0, 0), (1, 0), (2, 1), (3, 1)]),
        (1, 3, [(0, 0), (0, 1), (0, 2)]),
        (2, 2, [(0, 0), (1, 1)]),
    ],
)
def test_instances_are_paired_in_order(sources: int, targets: int, expected: Any) -> None:
    plan: Any = SimpleNamespace(instances={"from": sources, "to": targets}.get)
    transfer: Any = SimpleNamespace(source="from", target="to")
    assert pairs(plan, transfer) == expected


def test_a_message_has_its_share_of_the_environments() -> None:
    actors = (Place("actor", ACT, replicas=2), Place("learner", LEARN))
    plan = Plan(trace(Toy(), 8), actors, {"actor -> learner": Channel(capacity=3, lag=2)})
    first, second = (link for link in links(plan) if link.transfer.source == "actor")
    assert (first.name, second.name) == ("actor/0 -> learner/0", "actor/1 -> learner/0")
    assert second.key == (second.transfer.id, 1, 0) and second.end == ("learner", 0)
    assert [x.shape for x in first.arrays] == [(3, 4, 4)]  # of 8 environments
    assert first.message_nbytes == 3 * 4 * 4 * 4 and first.slots == 3 + 2
    assert all(link.slots == 1 for link in links(plan) if link.transfer.source == "learner")


def test_loops_in_parts_have_a_message_for_each_part() -> None:
    places = (Place("env", ("env",)), Place("rest", ("act", "learn")))
    for parts in (1, 2):
        plan = Plan(trace(Toy(), 8), places, parts=parts)
        looping = [link for link in links(plan) if link.transfer.loops]
        assert looping and all(link.slots == parts for link in looping)
        assert all(link.arrays[0].shape[0] == 8 // parts for link in looping)


@fragment(role="act")
def decay(w: Any) -> Any:
    return 0.9 * w


def test_a_value_that_all_sources_have_comes_from_the_first() -> None:
    def run(s: State) -> tuple[State, State]:
        w, x = decay(s["w"]), env(s["x"], act(s["x"]))
        return {"w": w, "x": x}, {"loss": learn(w, x)}

    places = (Place("actor", ACT, replicas=2), Place("learner", LEARN))
    plan = Plan(traced(run, "w x"), places)
    first, second = (link for link in links(plan) if link.transfer.source == "actor")
    assert sorted(x.shape for x in first.arrays) == [(), (NUM_ENVS // 2,)]
    assert [x.shape for x in second.arrays] == [(NUM_ENVS // 2,)]
    assert set(second.values) < set(first.values)


def test_a_version_goes_without_a_link() -> None:
    places = (Place("actor", ACT), Place("learner", LEARN))
    plan = Plan(trace(Toy(), 8), places, schedule=Free(Pair("learner", "actor", max_age=1)))
    assert {link.transfer.source for link in links(plan)} == {"actor"}
    assert [t.source for t in versions(plan)] == ["learner"]
    assert version_specs(plan) == [jax.ShapeDtypeStruct((4,), "float32")]
    assert versions(replace(plan, schedule=Plan(plan.graph, places).schedule)) == []
