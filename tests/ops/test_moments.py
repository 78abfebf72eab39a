"""Running moments against numpy over all batches at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.program.averaged import ReplicaAxis
from hocket.ops import Moments, standardize


def test_moments_are_those_of_all_batches() -> None:
    data = np.random.default_rng(0).normal(3.0, [1.0, 5.0], size=(4, 6, 3, 2)).astype(np.float32)
    moments = Moments.init((2,))
    for batch in data:
        moments = moments.update(jnp.asarray(batch))
    np.testing.assert_allclose(moments.mean, data.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(moments.var, data.var((0, 1, 2)), rtol=1e-5)
    assert moments.updates == 4


def test_every_update_weighs_the_same_whatever_its_size() -> None:
    moments = Moments.init(()).update(jnp.zeros(100)).update(jnp.full(4, 2.0))
    assert moments.mean == 1.0 and moments.var == 1.0


def test_a_batch_far_from_zero_keeps_its_variance() -> None:
    x = 1e4 + jax.random.normal(jax.random.key(0), (256,))
    np.testing.assert_allclose(Moments.init(()).update(x).var, np.var(x), rtol=1e-3)


def test_normalize() -> None:
    x = jnp.array([[1.0, 10.0], [3.0, 30.0]])
    moments = Moments.init((2,)).update(x)
    np.testing.assert_allclose(moments.normalize(x), [[-1, -1], [1, 1]], rtol=1e-6)
    np.testing.assert_allclose(moments.normalize(x[0] + 1e6), [10.0, 10.0])
    np.testing.assert_allclose(Moments.init((2,)).normalize(x, clip=5.0), [[1, 5], [3, 5]])


def test_bytes_can_be_normalized() -> None:
    x = jnp.array([[0], [255]], jnp.uint8)
    normal = Moments.init((1,)).update(x).normalize(x)
    np.testing.assert_allclose(normal, [[-1.0], [1.0]], rtol=1e-6)


def test_standardize() -> None:
    x = 5.0 + 3.0 * jax.random.normal(jax.random.key(0), (7, 4))
    np.testing.assert_allclose(standardize(x), (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(standardize(jnp.ones((3, 2))), np.zeros((3, 2)))


def test_two_replicas_have_the_moments_of_the_whole() -> None:
    x = jnp.arange(24.0).reshape(3, 8) ** 2
    halves = jnp.stack([x[:, :4], x[:, 4:]])
    over_replicas = partial(jax.vmap, axis_name=ReplicaAxis())
    moments = Moments.init(())
    for replicas in over_replicas(moments.update)(halves):
        np.testing.assert_array_equal(replicas[0], replicas[1])
    updated = jax.tree.map(lambda leaf: leaf[0], over_replicas(moments.update)(halves))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), updated, moments.update(x))
    parts = over_replicas(standardize)(halves)
    np.testing.assert_allclose(jnp.concatenate(list(parts), axis=1), standardize(x), rtol=1e-5)
