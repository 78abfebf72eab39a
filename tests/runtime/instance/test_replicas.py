"""Values in rows, a row for each replica, and the programs that are mapped over them."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from hocket import Place, Plan, averaged, trace
from hocket.core.graph.trace import ValueId
from hocket.runtime.channels.joins import FIRST, Concat
from hocket.runtime.instance.replicas import (
    cut_parts,
    home,
    join_parts,
    join_values,
    map_program,
    merge_axis,
    replica_mesh,
    split_axis,
    stack,
    stack_rows,
    unstack,
    without_aliases,
)
from tests.toys import Toy

CPUS = jax.local_devices()
WHOLE = jnp.arange(3 * 8 * 2).reshape(3, 8, 2)  # [time, envs, features]


def test_each_replica_has_its_environments_in_its_row() -> None:
    rows = split_axis(WHOLE, 1, 4)
    assert rows.shape == (4, 3, 2, 2)
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(row, WHOLE[:, 2 * k : 2 * k + 2])
    np.testing.assert_array_equal(merge_axis(rows, 1), WHOLE)
    with pytest.raises(TypeError, match="reshape"):
        split_axis(WHOLE, 1, 3)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_part_has_an_equal_share_of_every_block(blocks: int) -> None:
    parts = cut_parts(WHOLE, 1, 2, blocks)
    first = [0, 1, 2, 3] if blocks == 1 else [0, 1, 4, 5]
    np.testing.assert_array_equal(parts[0], WHOLE[:, first])
    np.testing.assert_array_equal(join_parts(parts, 1, blocks), WHOLE)


def test_places_with_other_replicas_agree_on_parts() -> None:
    """A replica that holds one of four blocks cuts it as the place that holds all four does."""
    replica = split_axis(WHOLE, 1, 4)[2]
    (mine, _), (all_first, _) = cut_parts(replica, 1, 2, 1), cut_parts(WHOLE, 1, 2, 4)
    np.testing.assert_array_equal(split_axis(all_first, 1, 4)[2], mine)


def test_what_is_the_same_for_all_environments_is_not_cut() -> None:
    w = jnp.ones(4)
    parts = cut_parts(w, None, 3, 2)
    assert len(parts) == 3 and all(part is w for part in parts)
    assert join_parts(parts, None, 2) is w


def test_a_state_is_stacked_by_replica_and_back() -> None:
    plan = Plan(trace(Toy(), 8), (Place("all", ("env", "act", "learn"), replicas=2),))
    state = Toy().init(jax.random.key(1), 8)
    rows = stack(plan, "all", state)
    assert rows.x.shape == (2, 4, 4) and rows.keys.shape == (2, 4) and rows.w is state.w
    whole = unstack(plan, rows)
    np.testing.assert_array_equal(whole.x, state.x)
    keys = jax.random.key_data(whole.keys)
    np.testing.assert_array_equal(keys, jax.random.key_data(state.keys))


def test_no_two_values_are_one_array() -> None:
    one, other = jnp.ones(2), jnp.zeros(2)
    kept = without_aliases(dict(zip(map(ValueId, range(4)), [one, other, one, one], strict=True)))
    assert kept[ValueId(0)] is one and kept[ValueId(1)] is other
    assert len({id(x) for x in kept.values()}) == 4
    np.testing.assert_array_equal(kept[ValueId(3)], one)


def test_values_of_one_part_are_taken_as_they_are() -> None:
    one, on_host = jnp.ones(2), np.ones(3)
    there = jax.device_put(jnp.arange(2.0), CPUS[1])
    values = join_values([[one], [there, one], [on_host]], [FIRST, Concat(0), FIRST], CPUS[2])
    assert values[0] is one and values[2] is on_host
    np.testing.assert_array_equal(values[1], [0, 1, 1, 1])
    assert values[1].devices() == {CPUS[2]}


def test_rows_are_stacked_where_they_are() -> None:
    on_device = [jnp.full(2, k) for k in range(3)]
    on_host = [np.full((2, 5), k) for k in range(3)]
    first, second, third = stack_rows([on_device, on_host, on_device], (1, 1, 0))
    assert isinstance(first, jax.Array) and type(second) is np.ndarray
    np.testing.assert_array_equal(first, [[0, 1, 2]] * 2)
    assert second.shape == (2, 3, 5) and (second[:, 2] == 2).all()
    np.testing.assert_array_equal(third, [[0, 0], [1, 1], [2, 2]])
    assert stack_rows([], ()) == []


@pytest.mark.parametrize(
    ("devices", "replicas", "shape"),
    [(1, 1, {"devices": 1}), (4, 1, {"devices": 4}), (2, 4, {"devices": 2}),
     (4, 4, {"devices": 4}), (4, 2, {"devices": 2, "shards": 2})],
)  # fmt: skip
def test_replicas_with_several_devices_have_a_second_axis(
    devices: int, replicas: int, shape: dict[str, int]
) -> None:
    assert dict(replica_mesh(CPUS[:devices], replicas).shape) == shape


@pytest.mark.parametrize(
    ("devices", "replicas", "axis", "stacked", "spec"),
    [
        (1, 1, 1, False, ()),  # on one device nothing is split
        (4, 1, None, False, ()),  # nor is what is the same for all environments
        (4, 1, 1, False, (None, "devices")),
        (4, 4, 1, True, ("devices",)),
        (4, 2, 1, True, ("devices", None, "shards")),
        (4, 2, 0, True, ("devices", "shards")),
    ],
)
def test_environments_are_split_over_devices(
    devices: int, replicas: int, axis: int | None, stacked: bool, spec: Any
) -> None:
    mesh = replica_mesh(CPUS[:devices], replicas)
    assert home(mesh, axis, stacked=stacked).spec == PartitionSpec(*spec)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_mapped_program_averages_over_all_rows(devices: int) -> None:
    def program(x: Any, w: Any) -> list[Any]:
        return [averaged(x.mean()) + w, x + w]

    mesh = replica_mesh(CPUS[:devices], 4)
    mapped = map_program(program, [True, False], [False, True], mesh, 4)
    rows = jnp.arange(12.0).reshape(4, 3)
    mean, moved = jax.jit(mapped)(rows, cast(Any, 100.0))
    assert float(mean) == 105.5  # one value for all rows
    np.testing.assert_array_equal(moved, rows + 100)
