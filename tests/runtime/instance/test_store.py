"""The store of an instance, which holds values whole, its share of them, or a row per replica."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Place, Plan, trace
from hocket.runtime.instance.store import Store, Values
from tests.toys import Toy

EVERYTHING = ("env", "act", "learn")
GROUPED = Plan(trace(Toy(), 8), (Place("replica", EVERYTHING, replicas=2),))
ACTORS = Plan(
    trace(Toy(), 8), (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))
)


def leaves(plan: Plan) -> Values:
    state = Toy().init(jax.random.key(0), 8)
    return dict(zip(plan.graph.block.inputs, jax.tree.leaves(state), strict=True))


def test_replicas_of_one_program_are_rows() -> None:
    store, state = Store(GROUPED, "replica", 0), leaves(GROUPED)
    store.load(state)
    x, keys, w, _ = GROUPED.graph.block.inputs
    assert store.grouped and {x, keys} <= store.stacked and w not in store.stacked
    assert store.values[x].shape == (2, 4, 4) and store.values[w].shape == (4,)
    np.testing.assert_array_equal(store.values[x][1], state[x][4:])
    held = store.held()
    for value, whole in state.items():
        np.testing.assert_array_equal(*map(_numbers, (held[value], whole)))
        rows = store.rows(value, whole)
        np.testing.assert_array_equal(*map(_numbers, (store.whole(value, rows), whole)))


def _numbers(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def test_a_host_function_takes_all_rows_as_one_batch() -> None:
    store, state = Store(GROUPED, "replica", 0), leaves(GROUPED)
    x, _, w, _ = GROUPED.graph.block.inputs
    rows = store.rows(x, state[x])
    batch = store.batch(x, rows)
    np.testing.assert_array_equal(batch, state[x])
    np.testing.assert_array_equal(store.unbatch(x, batch), rows)
    assert store.batch(w, state[w]) is store.unbatch(w, state[w]) is state[w]


@pytest.mark.parametrize("index", [0, 1])
def test_an_instance_holds_its_share(index: int) -> None:
    store, state = Store(ACTORS, "actor", index), leaves(ACTORS)
    store.load(state)
    x, *_ = ACTORS.graph.block.inputs
    np.testing.assert_array_equal(store.values[x], state[x][4 * index : 4 * index + 4])
    assert not store.stacked and store.whole(x, store.values[x]) is store.values[x]
    assert len(store.held()) == len(store.values) < len(state)  # the learner holds the rest


def test_what_is_loaded_or_held_is_a_copy() -> None:
    """A copy, because a program may overwrite the arrays that an instance holds."""
    store, state = Store(ACTORS, "learner", 0), leaves(ACTORS)
    store.load(state)
    for values in (state, store.held()):
        for value, x in store.values.items():
            assert _buffer(x) != _buffer(values[value])


def _buffer(x: Any) -> int:
    return _numbers(x).unsafe_buffer_pointer()


def test_two_leaves_of_one_array_are_kept_apart() -> None:
    store, state = Store(ACTORS, "learner", 0), leaves(ACTORS)
    store.load(state)
    one = jnp.ones(4)
    outs = dict.fromkeys(ACTORS.graph.block.outputs, one)
    store.keep(outs)
    kept = list(store.values.values())
    assert len({id(x) for x in kept}) == len(kept) > 1


def test_what_can_be_used_where_it_is() -> None:
    here, there = jax.local_devices()[:2]
    places = (Place("actor", ("env", "act"), on=("cpu:1",)), Place("learner", ("learn",)))
    plan = Plan(trace(Toy(), 8), places)
    first, second = Store(plan, "learner", 0), Store(plan, "actor", 0)
    array = jax.device_put(jnp.ones(4), here)
    assert first.is_here(array, once=False) and not second.is_here(array, once=True)
    assert second.is_here(jax.device_put(array, there), once=False)
    on_host = np.ones(4)
    assert first.is_here(on_host, once=True) and not first.is_here(on_host, once=False)
    assert not second.is_here(on_host, once=True)
    values: Values = dict.fromkeys(plan.graph.block.inputs[2:3], on_host)
    first.put_host_arrays(list(values), values)
    assert all(x is on_host for x in values.values())  # a program takes them as they are
    second.put_host_arrays(list(values), values)
    assert all(x.devices() == {there} for x in values.values())
