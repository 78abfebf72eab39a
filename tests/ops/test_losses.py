"""Losses against rlax and numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from hocket.ops import clipped_surrogate, clipped_value_loss, double_q, huber

KEYS = jax.random.split(jax.random.key(0), 4)
SHAPE = (5, 3)


def test_clipped_surrogate_is_rlax_before_its_mean() -> None:
    log_prob, old, advantage = (jax.random.normal(k, SHAPE) for k in KEYS[:3])
    loss = clipped_surrogate(log_prob, old, advantage, clip=0.2)
    expected = rlax.clipped_surrogate_pg_loss(
        jnp.exp(log_prob - old).ravel(), advantage.ravel(), 0.2
    )
    assert loss.shape == SHAPE
    np.testing.assert_allclose(loss.mean(), expected, rtol=1e-6)


def test_clipped_surrogate_has_no_gradient_past_the_clip() -> None:
    log_prob = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5, 1.1]))
    advantage = jnp.array([1.0, -1.0, 1.0, -1.0, 1.0])

    def loss(log_prob: jax.Array) -> jax.Array:
        return clipped_surrogate(log_prob, jnp.zeros(5), advantage, clip=0.2).sum()

    gradient = jax.grad(loss)(log_prob)
    np.testing.assert_array_equal(gradient != 0, [False, True, True, False, True])


def test_clipped_value_loss_takes_the_larger_error() -> None:
    value, old, target = (np.asarray(jax.random.normal(k, SHAPE)) for k in KEYS[:3])
    near = np.clip(value, old - 0.2, old + 0.2)
    expected = 0.5 * np.maximum((value - target) ** 2, (near - target) ** 2)
    loss = clipped_value_loss(*map(jnp.asarray, (value, old, target)), clip=0.2)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_huber_is_rlax_and_its_gradient_is_bounded() -> None:
    error = jnp.array([-3.0, -0.5, 0.0, 0.5, 0.7, 3.0])
    np.testing.assert_allclose(huber(error, delta=0.7), rlax.huber_loss(error, 0.7), rtol=1e-6)
    gradient = jax.vmap(jax.grad(lambda e: huber(e, delta=0.7)))(error)
    np.testing.assert_allclose(gradient, jnp.clip(error, -0.7, 0.7), rtol=1e-6)


def test_double_q_is_rlax() -> None:
    q_tm1, q_t_target, q_t_online = (jax.random.normal(k, (*SHAPE, 4)) for k in KEYS[:3])
    action = jax.random.randint(KEYS[3], SHAPE, 0, 4)
    reward, discount = jnp.ones(SHAPE), jnp.full(SHAPE, 0.9).at[0].set(0.0)
    error = double_q(q_tm1, action, reward, discount, q_t_target, q_t_online)
    by_rlax = jax.vmap(jax.vmap(rlax.double_q_learning))
    expected = by_rlax(q_tm1, action, reward, discount, q_t_target, q_t_online)
    np.testing.assert_allclose(error, expected, rtol=1e-6)
