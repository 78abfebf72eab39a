"""The environment axis of each value, and the refusal of values that replicas get wrong."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from hocket import PlanError, averaged, fragment
from hocket.core.analysis.axes import Axes, check_kind, shrinks_to_one
from hocket.core.analysis.kinds import UNIFORM, Kind, local
from tests.core.analysis.walked import COUNT, MEAN, PER_ENV, SUM
from tests.core.plans import ACTORS, SPLIT, WHOLE, checked
from tests.core.tiny import LENGTH, State, act, leaf, learn, only_loop, titled, traced
from tests.toys import Toy, ToyState


def run(s: State) -> tuple[State, State]:
    """Some steps of `act`, whose rows are merged for `learn`."""
    x, xs = lax.scan(lambda x, _: (act(x), x), s["x"], None, LENGTH)
    return {"w": learn(s["w"], xs.reshape(-1)), "x": x}, {"mean": x.mean()}


GRAPH = traced(run, "w x")
AXES = Axes(GRAPH, GRAPH.at(2))
W, X = leaf(GRAPH, "w"), leaf(GRAPH, "x")
ROWS = only_loop(GRAPH).ys[0].after
MERGED = titled(GRAPH.nodes, "reshape").outs[0]


def test_an_environment_axis_has_the_number_of_environments_both_times() -> None:
    assert [AXES.axis(v) for v in (W, X, ROWS)] == [None, 0, 1]


def test_an_axis_that_grows_otherwise_is_not_the_environments_own() -> None:
    assert GRAPH.values[MERGED].shape == (4 * LENGTH,)
    assert AXES.grown(MERGED) == [0]
    assert AXES.axis(MERGED) is None


def test_what_comes_from_elsewhere_is_split_or_whole() -> None:
    assert AXES.from_outside(W) == UNIFORM
    assert AXES.from_outside(ROWS) == Kind("per_env", axis=1, outer=1)
    assert AXES.from_outside(MERGED).tag == "local"


def test_the_kinds_on_a_place_are_of_its_nodes() -> None:
    (mean,) = GRAPH.reported
    whole = AXES.on_place(lambda node: True)
    assert whole[X] == PER_ENV and whole[mean] == MEAN
    assert whole[MERGED] == Kind("per_env", axis=0, outer=LENGTH)
    # The rows come from another place, which is uniform in nothing of its own.
    learner = AXES.on_place(lambda node: node.title == "learn")
    assert learner[W] == UNIFORM and learner[MERGED].tag == "local"
    assert mean not in learner


@pytest.mark.parametrize("kind", [UNIFORM, PER_ENV, Kind("uniform", degree=1, zero=True)])
def test_a_value_that_is_right_may_be_seen(kind: Kind) -> None:
    check_kind(AXES, X, kind, "`x` of the state", "actor")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (local("the test says so"), "the test says so"),
        (MEAN, "wrap the mean in `averaged"),
        (SUM, "wrap the mean in `averaged"),
        (COUNT, "depends on the number of environments"),
        (Kind("per_env", axis=0, outer=2), "its environments are not in their order"),
    ],
)
def test_a_value_that_would_be_wrong_is_refused(kind: Kind, reason: str) -> None:
    said = f"^the place `actor` cannot run as replicas: `x` of the state: .*{reason}"
    with pytest.raises(PlanError, match=said):
        check_kind(AXES, X, kind, "`x` of the state", "actor")


def test_a_value_that_cannot_be_put_together_is_refused_whatever_its_kind() -> None:
    with pytest.raises(PlanError, match=r"its shape \[12\] grows with the environments"):
        check_kind(AXES, MERGED, UNIFORM, "it", "actor")


def test_an_axis_of_size_one_is_told() -> None:
    """Jax leaves equations out for it, so the two traces would not match."""
    assert shrinks_to_one(GRAPH, GRAPH.at(1))
    assert not shrinks_to_one(GRAPH, GRAPH.at(2))


# In the step of an algorithm


class Flattening(Toy):
    @fragment(role="act", name="flatten")
    def flatten(self, xs: Any) -> Any:
        return xs.reshape(-1, 4)

    def seen(self, xs: Any) -> Any:
        return self.flatten(xs)


def test_flattened_value_crossing_from_replicas() -> None:
    with pytest.raises(
        PlanError, match=r"output 0 of `flatten`, sent to `learner`.*\[24, 4\].*two axes"
    ):
        checked(Flattening(), ACTORS)
    checked(Flattening(), SPLIT)
    checked(Flattening(), WHOLE)  # nobody sees it outside of one replica


class LocalMetric(Toy):
    def step(self, state: ToyState) -> Any:
        state, _ = super().step(state)
        return state, {"largest": state.x.max()}


def test_a_metric_that_cannot_be_joined() -> None:
    with pytest.raises(PlanError, match=r"metric `largest`.*only a mean can be averaged"):
        checked(LocalMetric(), WHOLE)


class SharedRing(Toy):
    """One buffer for all environments: neither per-environment nor uniform."""

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w.at[:2].set(xs[0, :2, 0]), key, averaged(xs.mean())


def test_one_buffer_for_all_environments() -> None:
    with pytest.raises(PlanError, match=r"`w` of the state"):
        checked(SharedRing(), WHOLE)


class CountsEnvironments(Toy):
    def step(self, state: ToyState) -> Any:
        state, metrics = super().step(state)
        return state, metrics | {"environments": jnp.float32(state.x.shape[0])}


def test_a_metric_that_is_a_constant() -> None:
    with pytest.raises(PlanError, match=r"metric `environments`.*smaller in a replica"):
        checked(CountsEnvironments(), WHOLE)
    checked(CountsEnvironments(), ACTORS)  # the learner, which is one program, reports it
