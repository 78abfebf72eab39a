"""What crosses between nodes, compared with counts by hand."""

from __future__ import annotations

from typing import Any

from hocket import Free, Pair, Place, Plan, trace
from hocket.cluster.devices import ON_NODES
from hocket.core.plan.nodes import (
    Connection,
    Crossing,
    NodeGroup,
    busiest,
    connections,
    crossings,
    ends_of,
    node_groups,
    seconds_of,
)
from hocket.core.plan.traffic import averages, flows
from tests.core.plans import ALL, AveragedCrowd
from tests.toys import Toy

GRAPH = trace(Toy(), 8)
PARAMETERS, ROLLOUT = 4 * 4, 3 * 8 * 4 * 4  # bytes


def actors(*on: str, **options: Any) -> Plan:
    """Return a plan with an actor on each of these devices, and the learner on the node `b`."""
    places = (
        Place("actor", ("env", "act"), on=on, replicas=len(on)),
        Place("learner", ("learn",), on=("b/cpu:0",)),
    )
    return Plan(GRAPH, places, **options)


FOUR = actors("a/cpu:0", "a/cpu:0", "b/cpu:0", "c/cpu:0")


def test_replicas_send_shares_and_get_the_whole() -> None:
    assert crossings(FOUR) == {
        ("b", "a"): Crossing(2 * PARAMETERS, 2, 1),
        ("b", "b"): Crossing(PARAMETERS, 1, 1) + Crossing(ROLLOUT // 4, 1, 1),
        ("b", "c"): Crossing(PARAMETERS, 1, 1),
        ("a", "b"): Crossing(ROLLOUT // 2, 2, 1),
        ("c", "b"): Crossing(ROLLOUT // 4, 1, 1),
    }


def test_all_that_crosses_is_counted_once() -> None:
    crossing, all_flows = crossings(FOUR).values(), flows(FOUR)
    assert sum(x.nbytes for x in crossing) == sum(flow.nbytes for flow in all_flows)
    assert sum(x.messages for x in crossing) == sum(flow.messages for flow in all_flows)


def test_a_loop_that_crosses_has_messages_one_after_another() -> None:
    env = Place("env", ("env",), on=("a/cpu:0", "b/cpu:0"), replicas=2)
    rest = Place("rest", ("act", "learn"), on=("b/cpu:0",))
    plan = Plan(GRAPH, (env, rest))
    made = crossings(plan)
    assert sum(x.nbytes for x in made.values()) == sum(flow.nbytes for flow in flows(plan))
    assert made["b", "a"] == Crossing(3 * 8 * 4 // 2, 3, 3)
    parts = crossings(Plan(GRAPH, (env, rest), parts=2))
    assert parts["b", "a"] == Crossing(3 * 8 * 4 // 2, 6, 6)


def test_values_of_no_environment_come_from_one_replica() -> None:
    """Of two equal learners, the first alone sends its parameters."""
    learners = Place("learner", ("learn",), on=("b/cpu:0", "c/cpu:0"), replicas=2)
    actor = Place("actor", ("env", "act"), on=("a/cpu:0",))
    made = crossings(Plan(GRAPH, (actor, learners), launch=ON_NODES))
    assert made["b", "a"].nbytes == PARAMETERS and made["c", "a"].nbytes == 0
    assert made["a", "b"].nbytes == made["a", "c"].nbytes == ROLLOUT // 2


def averaging(*on: str) -> Plan:
    places = (Place("all", ALL, on=on, replicas=len(on)),)
    return Plan(trace(AveragedCrowd(), 3 * len(on)), places, launch=ON_NODES)


def test_an_average_is_an_exchange_between_all_replicas() -> None:
    """Each replica sends to each other twice: its numbers, and then means."""
    plan = averaging("a/cpu:0", "b/cpu:0", "c/cpu:0")
    calls, nbytes = averages(plan)["all"]
    expected = Crossing(2 * nbytes // 3, 2 * calls, 2 * calls)
    assert crossings(plan) == {(a, b): expected for a in "abc" for b in "abc" if a != b}
    (each,), within = connections(plan)
    sources, targets = ends_of(each) or ((), ())
    assert not within and set(sources) == set(targets) == {"a", "b", "c"}


def test_replicas_of_one_node_average_there() -> None:
    plan = averaging("a/cpu:0", "a/cpu:1", "a/cpu:2", "b/cpu:0")
    calls, nbytes = averages(plan)["all"]
    assert crossings(plan) == {
        ("a", "a"): Crossing(2 * nbytes * 6 // 4, 2 * calls * 6, 2 * calls),
        ("a", "b"): Crossing(2 * nbytes * 3 // 4, 2 * calls * 3, 2 * calls),
        ("b", "a"): Crossing(2 * nbytes * 3 // 4, 2 * calls * 3, 2 * calls),
    }


def test_equal_nodes_are_one_group() -> None:
    assert node_groups(FOUR) == [
        NodeGroup(("a",), (("actor", 2),)),
        NodeGroup(("b",), (("actor", 1), ("learner", 1))),
        NodeGroup(("c",), (("actor", 1),)),
    ]
    many = actors("a/cpu:0", "c/cpu:0", "d/cpu:0", "b/cpu:0")
    assert node_groups(many)[0] == NodeGroup(("a", "c", "d"), (("actor", 1),))
    between, within = connections(many)
    assert between == [
        Connection(tuple((n, "b") for n in "acd"), Crossing(ROLLOUT // 4, 1, 1)),
        Connection(tuple(("b", n) for n in "acd"), Crossing(PARAMETERS, 1, 1)),
    ]
    assert [x.pairs for x in within] == [(("b", "b"),)]
    assert ends_of(between[0]) == (("a", "c", "d"), ("b",))
    assert ends_of(Connection((("a", "b"), ("c", "d")), Crossing())) is None


def test_the_busiest_node_is_that_of_the_learner() -> None:
    assert busiest(FOUR) == ("b", 3 * ROLLOUT // 4, 3 * PARAMETERS)
    assert busiest(actors("b/cpu:0")) is None


def test_a_time_is_that_of_messages_in_turn_and_of_all_bytes() -> None:
    connection = Connection((("a", "b"), ("c", "b")), Crossing(nbytes=1000, messages=8, turns=2))
    assert seconds_of(connection, {("a", "b"): (0.5, 100.0)}) == [2 * 0.5 + 10.0]
    assert seconds_of(connection, {}) == []


def test_a_free_plan_has_no_crossings() -> None:
    free = actors("b/cpu:0", "b/cpu:0", schedule=Free(Pair("learner", "actor", max_age=2)))
    assert crossings(free) == {}
