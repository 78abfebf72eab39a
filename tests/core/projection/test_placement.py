"""Placement alone: graphs of a few equations, traced and never compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from hocket import Place, PlanError
from hocket.core.projection.placement import Placement
from tests.core.plans import ALL, SPLIT, checked
from tests.core.tiny import (
    LENGTH,
    THREE,
    TWO,
    State,
    Step,
    act,
    env,
    leaf,
    learn,
    on_host,
    only_loop,
    titled,
    traced,
)
from tests.toys import Toy, ToyState

WIDE = 100
ONCE = {"actor": 1, "learner": 1}


def placed(
    run: Step,
    names: str,
    where: Mapping[str, str] = TWO,
    replicas: Mapping[str, int] | None = None,
    reporter: str | None = None,
) -> Placement:
    places = replicas or dict.fromkeys(where.values(), 1)
    return Placement(traced(run, names), where, places, reporter)


def glue(placement: Placement) -> dict[str, str]:
    """Return the place of each equation of glue in the step, by its primitive."""
    nodes = [n for n in placement.graph.block.nodes if not n.labels and n.id in placement.node]
    return {n.title: placement.node[n.id] for n in nodes}


# Fragments and glue


def test_fragments_go_where_the_plan_says() -> None:
    def run(s: State) -> tuple[State, State]:
        return {"w": learn(s["w"], act(s["x"])), "x": s["x"]}, {}

    placement = placed(run, "w x")
    nodes = placement.graph.block.nodes
    assert placement.node[titled(nodes, "act").id] == "actor"
    assert placement.node[titled(nodes, "learn").id] == "learner"


def test_glue_that_makes_a_value_smaller_runs_before_it_crosses() -> None:
    def run(s: State) -> tuple[State, State]:
        wide = jnp.broadcast_to(s["x"][:, None], (s["x"].shape[0], WIDE))
        small = act(wide).sum(1)
        return {"w": learn(s["w"], small), "x": s["x"]}, {}

    assert glue(placed(run, "w x"))["reduce_sum"] == "actor"


def test_glue_that_makes_a_value_larger_runs_after_it_crosses() -> None:
    def run(s: State) -> tuple[State, State]:
        large = jnp.broadcast_to(act(s["x"])[:, None], (s["x"].shape[0], WIDE))
        return {"w": learn(s["w"], large), "x": s["x"]}, {}

    assert glue(placed(run, "w x"))["broadcast_in_dim"] == "learner"


def test_neighbouring_glue_stays_together() -> None:
    """The wide value in the middle never crosses, whatever lies at the ends."""

    def run(s: State) -> tuple[State, State]:
        wide = jnp.broadcast_to(act(s["x"])[:, None], (s["x"].shape[0], WIDE))
        return {"w": learn(s["w"], jnp.sin(wide).max(1)), "x": s["x"]}, {}

    places = glue(placed(run, "w x"))
    assert {"broadcast_in_dim", "sin", "reduce_max"} <= places.keys()
    assert len(set(places.values())) == 1


@pytest.mark.parametrize("once", ["actor", "learner"])
def test_where_it_costs_the_same_glue_goes_to_the_place_that_is_there_once(once: str) -> None:
    def run(s: State) -> tuple[State, State]:
        return {"w": learn(s["w"], jnp.sin(act(s["x"]))), "x": s["x"]}, {}

    replicas = {place: 1 if place == once else 2 for place in ONCE}
    assert glue(placed(run, "w x", replicas=replicas)) == {"sin": once}


def test_glue_that_renews_a_state_takes_the_state_along() -> None:
    """Elsewhere than with its reader, the wide state would cross in every iteration."""

    def run(s: State) -> tuple[State, State]:
        return {"w": learn(s["w"], s["x"]), "x": jnp.sin(s["x"]), "y": act(s["y"])}, {}

    placement = placed(run, "w x y")
    assert glue(placement) == {"sin": "learner"}
    assert placement.home[leaf(placement.graph, "x")] == "learner"


def test_what_is_made_from_constants_alone_is_on_every_place() -> None:
    def run(s: State) -> tuple[State, State]:
        ramp = jnp.sin(jnp.arange(3.0))
        return {"w": learn(s["w"], ramp), "x": act(s["x"]) + ramp.sum()}, {}

    placement = placed(run, "w x")
    free = [n for n in placement.graph.block.nodes if placement.is_free(n)]
    assert {"iota", "sin", "reduce_sum"} <= {n.title for n in free}
    assert not [n for n in free if n.id in placement.node]
    assert not [v for n in free for v in n.outs if v in placement.home]


def test_fragments_of_two_places_under_one_branch_are_refused() -> None:
    def run(s: State) -> tuple[State, State]:
        x, w = s["x"], s["w"]
        x, w = lax.cond(w > 0, lambda: (act(x), w), lambda: (x, learn(w, x)))
        return {"w": w, "x": x}, {}

    with pytest.raises(PlanError, match="`learn` on `learner`, `act` on `actor`"):
        placed(run, "w x")


# The homes of values


def test_a_state_lives_where_its_next_version_is_made() -> None:
    def run(s: State) -> tuple[State, State]:
        x = env(s["x"], act(s["x"]))
        return {"w": learn(s["w"], x), "x": x}, {}

    placement = placed(run, "w x")
    w, x = (leaf(placement.graph, name) for name in "wx")
    assert (placement.home[w], placement.home[x]) == ("learner", "actor")
    assert placement.held("learner").keys() == {w}
    assert placement.held("actor").keys() == {x}


def test_a_state_that_is_only_passed_on_lives_with_its_first_reader() -> None:
    def run(s: State) -> tuple[State, State]:
        return {**s, "w": learn(s["w"], s["read"])}, {"y": act(s["w"])}

    placement = placed(run, "read unread w")
    assert placement.home[leaf(placement.graph, "read")] == "learner"
    assert placement.home[leaf(placement.graph, "unread")] == "actor"  # the first place


def test_states_that_are_exchanged_have_homes() -> None:
    """The search for where `a` is made leads to `b`, and from there back to `a`."""

    def run(s: State) -> tuple[State, State]:
        metrics = {"a": act(s["a"]), "b": learn(0.0, s["b"])}
        return {"a": s["b"], "b": s["a"]}, metrics

    placement = placed(run, "a b")
    homes = [placement.home[leaf(placement.graph, name)] for name in "ab"]
    assert homes == ["actor", "learner"]


def test_metrics_are_reported_where_they_are_made_or_by_the_reporter() -> None:
    def run(s: State) -> tuple[State, State]:
        metrics = {"a": act(s["x"]), "b": learn(s["w"], s["x"]), "c": jnp.float32(s["x"].shape[0])}
        return s, metrics

    replicas = {"actor": 2, "learner": 1}
    alone = placed(run, "w x", replicas=replicas)
    made = dict(zip("abc", (alone.reports[v] for v in alone.graph.reported), strict=True))
    # A constant is reported by the place with the fewest replicas: the number of environments, say.
    assert made == {"a": "actor", "b": "learner", "c": "learner"}
    assert alone.ends("actor") & set(alone.graph.reported) == {alone.graph.reported[0]}
    told = placed(run, "w x", replicas=replicas, reporter="learner")
    assert set(told.reports.values()) == {"learner"}


# Loops


def rollout(s: State) -> tuple[State, State]:
    """Three steps of `env` and `act`; `learn` reads what was seen."""

    def one(x: Any, _: None) -> Any:
        return env(x, act(x)), x

    x, xs = lax.scan(one, s["x"], None, LENGTH)
    return {"w": learn(s["w"], xs), "x": x}, {}


def test_a_loop_with_fragments_of_one_place_is_a_node_there() -> None:
    placement = placed(rollout, "w x", TWO)
    loop = only_loop(placement.graph)
    assert placement.node[loop.id] == "actor"
    assert not placement.crosses(loop)
    assert list(placement.open_blocks(placement.graph.block)) == [placement.graph.block]


def test_a_loop_with_fragments_of_two_places_belongs_to_none() -> None:
    placement = placed(rollout, "w x", THREE)
    loop = only_loop(placement.graph)
    assert placement.crosses(loop)
    assert placement.members(loop) == {"act", "env"}
    assert list(placement.open_blocks(placement.graph.block))[1:] == [loop.body]
    assert placement.node[titled(loop.body.nodes, "act").id] == "act"
    assert placement.node[titled(loop.body.nodes, "env").id] == "env"


def test_what_a_loop_carries_lives_where_each_pass_makes_it() -> None:
    placement = placed(rollout, "w x", THREE)
    (x,) = only_loop(placement.graph).carry
    assert {placement.home[v] for v in (x.first, x.inside, x.next, x.after)} == {"env"}
    assert placement.carried[x.inside] == x.next


def test_what_a_loop_only_reads_is_needed_by_the_places_that_read_it() -> None:
    def run(s: State) -> tuple[State, State]:
        def one(x: Any, _: None) -> Any:
            return env(x, act(x + s["w"])), None

        x, _ = lax.scan(one, s["x"], None, LENGTH)
        return {"w": learn(s["w"], x), "x": x}, {}

    placement = placed(run, "w x", THREE)
    w, loop = leaf(placement.graph, "w"), only_loop(placement.graph)
    readers = [place for place, values in placement.loop_users(loop).items() if w in values]
    assert readers == ["act"]
    assert placement.home[w] == "learner"
    (inside,) = [c.inside for c in loop.consts if c.outside == w]
    assert placement.home[inside] == "learner"  # the same value as outside


@pytest.mark.parametrize(
    ("learner", "home"),
    [
        ("act", "act"),  # `act` reads each row anyway, so nothing crosses again after the loop
        ("learner", "env"),  # no row is there yet, so they are stacked where they are made
    ],
)
def test_rows_are_stacked_where_they_are_needed_if_they_are_there(learner: str, home: str) -> None:
    placement = placed(rollout, "w x", {**THREE, "learn": learner})
    (row, after) = only_loop(placement.graph).ys[0]
    assert placement.home[after] == home
    assert row in placement.users(only_loop(placement.graph).body)[home]


def test_a_loop_that_calls_the_host_belongs_to_none_even_with_one_place() -> None:
    def run(s: State) -> tuple[State, State]:
        x, _ = lax.scan(lambda x, _: (on_host(act(x)), None), s["x"], None, LENGTH)
        return {"w": learn(s["w"], x), "x": x}, {}

    placement = placed(run, "w x", TWO)
    loop = only_loop(placement.graph)
    assert placement.crosses(loop)
    assert placement.members(loop) == {"actor"}


class Branching(Toy):
    def step(self, state: ToyState) -> tuple[ToyState, dict[str, Any]]:
        def both() -> Any:
            x = self.env(state.x, self.act(state.w, state.x), state.keys)
            return x, *self.update(state.w, state.key, x[None])[:2]

        x, w, key = lax.cond(state.w[0] > -1e9, both, lambda: (state.x, state.w, state.key))
        return state._replace(x=x, w=w, key=key), {}


def test_a_fragment_under_cond_that_would_cross() -> None:
    with pytest.raises(
        PlanError, match=r"under one `cond` .*`act` on `actor`.*`update` on `learner`"
    ):
        checked(Branching(), SPLIT)
    checked(Branching(), (Place("all", ALL),))
