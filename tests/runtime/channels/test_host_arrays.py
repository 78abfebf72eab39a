"""Arrays on the host, where random keys are numbers, and come back as the keys they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.channels.host_arrays import from_host, host_spec, is_key, to_host, with_impl

BOTH = ("threefry2x32", "rbg")


def test_an_array_of_the_cpu_is_not_copied() -> None:
    x = jnp.arange(64.0)
    on_host = to_host(x)
    assert type(on_host) is np.ndarray
    assert on_host.ctypes.data == x.unsafe_buffer_pointer()
    assert from_host(on_host, x) is on_host


@pytest.mark.parametrize("impl", BOTH)
def test_keys_come_back_as_they_were(impl: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    like = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    on_host = to_host(keys)
    assert (on_host.shape, on_host.dtype) == host_spec(like) == host_spec(keys)
    assert on_host.dtype == np.uint32 and on_host.shape[:1] == (4,)
    for back in (from_host(on_host, like), jax.jit(lambda x: with_impl(x, like))(on_host)):
        assert back.dtype == keys.dtype and back.shape == keys.shape
        np.testing.assert_array_equal(jax.random.key_data(back), on_host)


def test_only_keys_are_keys() -> None:
    key = jax.random.key(0)
    assert is_key(key) and is_key(jax.ShapeDtypeStruct((2,), key.dtype))
    assert not is_key(jax.random.key_data(key)) and not is_key(np.zeros(2, np.uint32))
    assert host_spec(np.ones((2, 3), np.int8)) == ((2, 3), np.dtype(np.int8))
