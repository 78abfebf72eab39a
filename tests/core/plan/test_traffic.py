"""The messages and bytes that cross in an iteration, compared with counts by hand."""

from __future__ import annotations

from hocket import Free, Pair, Plan, trace
from hocket.core.plan.traffic import Flow, average_sites, averages, flows
from hocket.runtime.launch import launch_named
from tests.core.plans import ACTORS, APART, SPLIT, WHOLE, AveragedCrowd
from tests.toys import Toy

GRAPH = trace(Toy(), 8)
PARAMETERS, ROLLOUT = 4 * 4, 3 * 8 * 4 * 4  # bytes


def test_an_actor_and_a_learner_exchange_a_rollout_for_parameters() -> None:
    assert flows(Plan(GRAPH, SPLIT)) == [
        Flow("learner", "actor", ("w",), 1, PARAMETERS),
        Flow("actor", "learner", ("x",), 1, ROLLOUT),
    ]


def test_replicas_are_each_sent_the_whole_or_send_a_share() -> None:
    assert flows(Plan(GRAPH, ACTORS)) == [
        Flow("learner", "actor", ("w",), 2, 2 * PARAMETERS),
        Flow("actor", "learner", ("x",), 2, ROLLOUT),
    ]


def test_a_free_learner_takes_one_sample_and_sends_one_version() -> None:
    free = Plan(GRAPH, ACTORS, schedule=Free(Pair("learner", "actor", max_age=2)))
    version, sample = flows(free)
    assert version == Flow("learner", "actor", ("w",), 1, PARAMETERS)
    # The learner reports all metrics, so one number for each of 4 environments comes as well.
    assert (sample.messages, sample.nbytes) == (2, ROLLOUT // 2 + 4 * 4)


def test_a_loop_that_crosses_has_a_message_in_every_pass_and_part() -> None:
    def of(plan: Plan) -> dict[tuple[str, str], tuple[int, int]]:
        return {(f.source, f.target): (f.messages, f.nbytes) for f in flows(plan)}

    whole, parts = of(Plan(GRAPH, APART)), of(Plan(GRAPH, APART, parts=2))
    assert whole["act", "env"] == (3, 3 * 8 * 4)
    assert parts["act", "env"] == (6, 3 * 8 * 4)
    assert parts["env", "learner"] == whole["env", "learner"]


def test_means_are_counted_for_one_replica() -> None:
    gradient, loss, crowd = 4 * 4, 4, 4 * 4
    assert averages(Plan(GRAPH, WHOLE)) == {"all": (2, gradient + loss)}
    crowds = Plan(trace(AveragedCrowd(), 8), WHOLE)
    assert averages(crowds) == {"all": (2 + 3, gradient + loss + 3 * crowd)}
    assert averages(Plan(GRAPH, SPLIT)) == {}


def test_a_loop_that_may_be_unrolled_has_room_for_all_its_averages() -> None:
    """A GPU unrolls it, and then every step in a pass makes a call of its own."""
    sites = [
        len(average_sites(Plan(trace(toy, 8), WHOLE, launch=launch_named("processes")), "all"))
        for toy in (Toy(), AveragedCrowd())
    ]
    assert sites[1] == sites[0] + Toy.length
