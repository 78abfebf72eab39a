"""Returns and advantages of the steps of a rollout.

Every array is `[T, ...]`. `value` is v(obs) and `next_value` is v(next_obs). At the end of an
episode `next_obs` is its final observation, not the first one of the next episode. So a truncated
episode bootstraps, a terminated one does not, and nothing leaks from one episode into another.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from hocket.core.program.tuning import tuning

Tree = TypeVar("Tree")


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    discount: float | Array,
    decay: float | Array,
) -> tuple[Array, Array]:
    """Return generalized advantage estimates, and the value targets `advantage + value`.

    Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
    Estimation": https://arxiv.org/abs/1506.02438
    """
    delta = reward + discount * ~terminated * next_value - value
    trace = discount * decay * ~(terminated | truncated)
    advantage = _accumulate(delta, trace, jnp.zeros_like(delta[-1]))
    return advantage, advantage + value


def lambda_returns(
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    discount: float | Array,
    decay: float | Array,
) -> Array:
    """Return TD(lambda) returns: one-step targets for `decay=0`, Monte Carlo returns for `decay=1`.

    Sutton and Barto 2018, "Reinforcement Learning: An Introduction", section 12.1.
    """
    trace = decay * ~truncated
    discount_t = discount * ~terminated
    bootstrapped = reward + discount_t * (1.0 - trace) * next_value
    return _accumulate(bootstrapped, discount_t * trace, next_value[-1])


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    discount: float | Array,
    decay: float | Array = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[Array, Array]:
    """Return V-trace value targets and policy-gradient advantages. No gradient flows through them.

    `log_ratio` is log pi(action) - log mu(action), where mu is the policy that acted.

    Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures": https://arxiv.org/abs/1802.01561
    """
    ratio = jnp.exp(log_ratio)
    discount_t = discount * ~terminated
    trace = decay * ~(terminated | truncated)
    delta = jnp.minimum(ratio, clip_rho) * (reward + discount_t * next_value - value)
    weight = discount_t * trace * jnp.minimum(ratio, clip_c)
    error_tm1 = _accumulate(delta, weight, jnp.zeros_like(delta[-1]))
    error_t = jnp.concatenate([error_tm1[1:], jnp.zeros_like(error_tm1[:1])])
    q = reward + discount_t * (next_value + trace * error_t)
    advantage = jnp.minimum(ratio, clip_pg_rho) * (q - value)
    return lax.stop_gradient((error_tm1 + value, advantage))


class NStep(NamedTuple):
    """N-step transitions, one for each start t."""

    reward: Array
    """The discounted sum of the rewards of n steps, or of fewer if the episode ends sooner."""
    discount: Array
    """The weight of the bootstrap value: discount ** steps taken, or 0 after a termination."""
    last: Array
    """The time index of the last step taken. Bootstrap from its `next_obs`."""


def n_step(
    reward: Array, terminated: Array, truncated: Array, *, discount: float | Array, steps: int
) -> NStep:
    """Return n-step transitions, one from each of the first `T - steps + 1` time steps.

    The last `steps - 1` time steps start no transition, because too few steps follow them. Put them
    before the next rollout to use them.

        target = n_step(reward, terminated, truncated, discount=0.99, steps=3)
        next_obs = take_steps(rollout.next_obs, target.last)

    Sutton 1988, "Learning to Predict by the Methods of Temporal Differences".
    """
    length = reward.shape[0]
    if not 1 <= steps <= length:
        raise ValueError(
            f"cannot take {steps}-step returns of a rollout of {length} steps. "
            f"Use `steps` from 1 to {length}, or a longer rollout."
        )
    end = terminated | truncated
    # The n-step return from t is one reward plus the discounted (n-1)-step return from t + 1. Begin
    # with n = 0, where the last step taken is t - 1. Each round puts one more step in front.
    time = jnp.arange(-1, length).reshape(length + 1, *(1,) * (reward.ndim - 1))
    last = jnp.broadcast_to(time, (length + 1, *reward.shape[1:]))
    total = jnp.zeros_like(reward, shape=last.shape)
    bootstrap = jnp.ones_like(total)
    for starts in range(length, length - steps, -1):
        end_t = end[:starts]
        total = reward[:starts] + discount * jnp.where(end_t, 0.0, total[1:])
        bootstrap = discount * jnp.where(end_t, ~terminated[:starts], bootstrap[1:])
        last = jnp.where(end_t, time[1 : starts + 1], last[1:])
    return NStep(total, bootstrap, last)


def take_steps(tree: Tree, time: Array) -> Tree:
    """Take each environment's steps at the indices `time [S, N]` from a tree `[T, N, ...]`."""

    def take(x: Array) -> Array:
        index = time.reshape(time.shape + (1,) * (x.ndim - time.ndim))
        return jnp.take_along_axis(x, index, axis=0)

    return jax.tree.map(take, tree)


def _accumulate(value: Array, weight: Array, last: Array) -> Array:
    """Compute `x_t = value_t + weight_t * x_{t+1}` backwards, from `x_T = last`."""

    def step(x_t: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        value_tm1, weight_tm1 = at
        x_tm1 = value_tm1 + weight_tm1 * x_t
        return x_tm1, x_tm1

    return lax.scan(step, last, (value, weight), reverse=True, unroll=tuning().unroll)[1]
