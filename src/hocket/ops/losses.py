"""Losses of single elements; the caller takes the mean."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def clipped_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, *, clip: float | Array
) -> Array:
    """Return PPO's policy loss. A ratio farther than `clip` from 1 cannot lower the loss further.

    Schulman et al. 2017, "Proximal Policy Optimization Algorithms":
    https://arxiv.org/abs/1707.06347
    """
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def clipped_value_loss(
    value: Array, old_value: Array, target: Array, *, clip: float | Array
) -> Array:
    """Return half the squared error of the value, or of the value clipped to within `clip` of the
    old one, whichever is larger.

    From PPO in OpenAI Baselines; see Engstrom et al. 2020, "Implementation Matters in Deep Policy
    Gradients": https://arxiv.org/abs/2005.12729
    """
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target))


def huber(error: Array, *, delta: float = 1.0) -> Array:
    """Return half the squared error, continued linearly beyond `delta`, so gradients are bounded.

    Huber 1964, "Robust Estimation of a Location Parameter".
    """
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, delta)
    return 0.5 * jnp.square(quadratic) + delta * (size - quadratic)


def double_q(
    q_tm1: Array,
    action: Array,
    reward: Array,
    discount: Array,
    q_t_target: Array,
    q_t_online: Array,
) -> Array:
    """Return the TD error of double Q-learning.

    The online network picks the next action, and the target network gives that action's value.
    Action values are `[..., A]`, other arguments `[...]`. `discount` is 0 where the episode
    terminated. No gradient flows through the target.

    van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning":
    https://arxiv.org/abs/1509.06461
    """
    target = reward + discount * _of_action(q_t_target, jnp.argmax(q_t_online, axis=-1))
    return lax.stop_gradient(target) - _of_action(q_tm1, action)


def _of_action(q: Array, action: Array) -> Array:
    return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]
