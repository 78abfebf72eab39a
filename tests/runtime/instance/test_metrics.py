"""The metrics of iterations arrive in order, whether they stay on a device meanwhile or not."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from hocket.runtime.instance.metrics import KEPT, MetricRows, _written, is_on_accelerator


def reported(k: int) -> list[Any]:
    """Return the metrics of an iteration, on a device except the second, which is on the host."""
    return [
        jnp.float32(k) / 7, np.full(3, k), jnp.arange(6, dtype=jnp.int32).reshape(2, 3) - k,
        jnp.bool_(k % 3),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, KEPT - 1, KEPT, KEPT + 1, 2 * KEPT + 5])
@pytest.mark.parametrize("stays", [is_on_accelerator, lambda x: isinstance(x, jax.Array)])
def test_every_row_is_there_in_its_order(count: int, stays: Any) -> None:
    rows = MetricRows(stays)
    for k in range(count):
        rows.add(reported(k))
    made = zip(*map(reported, range(count)), strict=True)
    for column, metric in zip(rows.columns(), made, strict=True):
        expected = np.stack([np.asarray(x) for x in metric])
        assert isinstance(column, np.ndarray)
        assert column.dtype == expected.dtype
        np.testing.assert_array_equal(column, expected)


def test_what_stays_on_a_device_is_one_array_for_many_rows() -> None:
    rows = MetricRows(lambda x: isinstance(x, jax.Array))
    before = len(jax.live_arrays())
    for k in range(KEPT):
        rows.add(reported(k))
    assert len(jax.live_arrays()) <= before + 3


@pytest.mark.parametrize("spread", [False, True])
def test_it_stays_where_it_was_made_and_the_first_row_compiles_all(spread: bool) -> None:
    devices = np.array(jax.devices()[1:3])
    shards = NamedSharding(Mesh(devices, ("devices",)), PartitionSpec("devices"))
    where = shards if spread else SingleDeviceSharding(devices[1])
    rows, written = MetricRows(lambda x: isinstance(x, jax.Array)), cast(Any, _written)
    rows.add([jax.device_put(jnp.arange(8.0), where)])
    compiled = written._cache_size()
    rows.add([jax.device_put(jnp.arange(1.0, 9.0), where)])
    assert written._cache_size() == compiled
    assert rows._there[0][0].devices() == set(devices if spread else devices[1:])
    np.testing.assert_array_equal(rows.columns()[0], [np.arange(8.0), np.arange(1.0, 9.0)])


def test_nothing_reported_is_no_column() -> None:
    rows = MetricRows()
    assert rows.columns() == []
    rows.add([])
    assert rows.columns() == []
