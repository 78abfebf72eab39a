"""Steps and states that break the contract are refused, by what is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hocket import ContractError, fragment, trace
from hocket.core.program.contract import check_names, check_state, check_step, leaf_names
from hocket.core.program.fragment import Label
from tests.toys import Toy, ToyState


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


STATE = {"w": spec(3), "x": (spec(8), spec(8, 2))}


def test_a_step_that_keeps_the_contract_is_accepted() -> None:
    check_step(Toy(), STATE, (STATE, {"loss": spec(), "x": spec(8)}))
    check_step(Toy(), STATE, (STATE, {}))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (STATE, "Toy.step must return (state, metrics), metrics a dict of arrays; found dict."),
        ((STATE, [spec()]), "found metrics that are list."),
        ((STATE, {}, {}), "found tuple."),
        ((STATE, {"a": {"b": spec()}}), "the metric `a` of Toy is dict, and must be one array."),
        (
            ({"w": spec(3), "y": spec(8)}, {}),
            "it loses ['x.0', 'x.1'] and gains ['y']. Return a state with the structure",
        ),
        (
            ({"w": spec(3), "x": (spec(8), spec(2, 8))}, {}),
            "Toy.step changes its state: `x.1` is float32[2, 8] instead of float32[8, 2].",
        ),
        (
            ({"w": spec(3, dtype=jnp.int32), "x": STATE["x"]}, {}),
            "Toy.step changes its state: `w` is int32[3] instead of float32[3].",
        ),
    ],
)
def test_a_step_that_breaks_it_is_refused(out: Any, message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(message)):
        check_step(Toy(), STATE, out)


def test_a_state_of_other_environments_is_refused() -> None:
    check_state(Toy(), 8, STATE, STATE)
    with pytest.raises(ValueError, match=r"does not fit Toy with 8 environments: `x\.0`"):
        check_state(Toy(), 8, STATE, {"w": spec(3), "x": (spec(4), spec(4, 2))})
    with pytest.raises(ValueError, match="it has another structure"):
        check_state(Toy(), 8, STATE, {"w": spec(3)})


def test_one_name_has_one_role() -> None:
    check_names(Toy(), [Label("act", "act"), Label("look", "act"), Label("act", "act")])
    with pytest.raises(ContractError, match="named `act`, with the roles `act` and `env`: rename"):
        check_names(Toy(), [Label("act", "act"), Label("act", "env")])


def test_leaves_are_named_by_their_paths() -> None:
    assert leaf_names(STATE) == ["w", "x.0", "x.1"]
    assert leaf_names(ToyState(1, 2, 3, 4), "toy.") == ["toy.x", "toy.keys", "toy.w", "toy.key"]


# Of traced steps


class ChangesStructure(Toy):
    def step(self, state: ToyState) -> Any:
        return (state.x, state.w), {}


class ChangesDtype(Toy):
    def step(self, state: ToyState) -> Any:
        return super().step(state)[0]._replace(w=state.w.astype(jnp.float16)), {}


class ReturnsNoMetrics(Toy):
    def step(self, state: ToyState) -> Any:
        return super().step(state)[0]


def test_a_step_that_changes_its_state() -> None:
    with pytest.raises(ContractError, match=r"ChangesStructure\.step changes the structure.*loses"):
        trace(ChangesStructure(), 8)
    with pytest.raises(ContractError, match=r"changes its state: `w` is float16"):
        trace(ChangesDtype(), 8)
    with pytest.raises(ContractError, match=r"must return \(state, metrics\)"):
        trace(ReturnsNoMetrics(), 8)


class TwoOfOneName(Toy):
    def step(self, state: ToyState) -> Any:
        state, _ = super().step(state)
        other = fragment(role="replay", name="act")(lambda x: 2 * x)
        return state, {"x": other(state.x)}


class NestedMetrics(Toy):
    def step(self, state: ToyState) -> Any:
        return super().step(state)[0], {"a": {"b": state.w}}


def test_names_and_metrics() -> None:
    with pytest.raises(ContractError, match="two fragments named `act`"):
        trace(TwoOfOneName(), 8)
    with pytest.raises(ContractError, match=r"the metric `a` .* must be one array"):
        trace(NestedMetrics(), 8)
