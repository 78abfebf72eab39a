from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.ops.initializers import orthogonal


@pytest.mark.parametrize("shape", [(4, 64), (64, 64), (64, 2), (100, 70), (3, 3, 8, 40), (64, 1)])
def test_as_jax_makes_them(shape: tuple[int, ...]) -> None:
    key = jax.random.key(3)
    ours = orthogonal(1.5)(key, shape)
    theirs = jax.nn.initializers.orthogonal(1.5)(key, shape)
    assert ours.shape == shape and ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
    flat = ours.reshape(-1, shape[-1]) / 1.5
    small = flat.T @ flat if flat.shape[0] >= flat.shape[1] else flat @ flat.T
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)


@pytest.mark.timeout(120)
def test_many_at_once_do_not_wait_for_each_other() -> None:
    """With LAPACK's decomposition this hangs on two cores."""

    def init(key: jax.Array) -> list[jax.Array]:
        keys = jax.random.split(key, 6)
        shapes = [(4, 64), (64, 64), (64, 2), (4, 64), (64, 64), (64, 1)]
        return [orthogonal()(k, shape) for k, shape in zip(keys, shapes, strict=True)]

    many = jax.jit(jax.vmap(init))
    for seed in range(20):
        jax.block_until_ready(many(jax.random.split(jax.random.key(seed), 64)))
    assert jnp.isfinite(many(jax.random.split(jax.random.key(0), 64))[1]).all()
