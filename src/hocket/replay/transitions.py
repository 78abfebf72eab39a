"""n-step transitions from rollouts: each exactly once, even if it spans two rollouts.

    tail = init_tail(obs, action, num_envs, steps=3)     # `obs` and `action` of one environment
    tail, transitions, real = join(tail, rollout, discount=0.99, steps=3)

The tail is a part of the actor's state, with an axis for the environments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hocket.envs.unroll import Rollout
from hocket.ops import n_step, take_steps

# Legend: T steps of a rollout, N environments, n of n-step.


class Transition(NamedTuple):
    """n steps of an episode, or fewer where the episode ends earlier."""

    obs: Any
    action: Any
    reward: Array
    """The discounted sum of the rewards of these steps."""
    discount: Array
    """The weight of the value of `next_obs`; 0 after a termination."""
    next_obs: Any


class Tail(NamedTuple):
    """The last n - 1 steps, `[n - 1, N, ...]`, whose n-step windows reach into the next rollout."""

    obs: Any
    action: Any
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Any
    real: Array
    """False for the zeros that fill the tail before the first step of the run."""


def example(obs: Any, action: Any) -> Transition:
    """Return an example transition of one environment, which `memory.init` takes as its `row`."""
    return Transition(obs, action, jnp.zeros(()), jnp.zeros(()), obs)


def init_tail(obs: Any, action: Any, num_envs: int, *, steps: int) -> Tail:
    """Make the tail for the first rollout, all zeros. `obs` and `action` are one environment's."""
    number, flag = jnp.zeros(()), jnp.zeros((), bool)
    step = Tail(obs, action, number, flag, flag, obs, real=flag)
    return jax.tree.map(lambda x: jnp.zeros((steps - 1, num_envs, *x.shape), x.dtype), step)


def join(
    tail: Tail, rollout: Rollout, *, discount: float, steps: int
) -> tuple[Tail, Transition, Array]:
    """Join a rollout to the steps before it. Return `(tail, transitions, real)`.

    Pass `tail` on to the next call. `transitions` are the `[T, N]` transitions that this rollout
    completes. `real` is false for transitions that would have begun before the run.
    """
    new = Tail(
        rollout.obs, rollout.action, rollout.reward, rollout.terminated, rollout.truncated,
        rollout.next_obs, real=jnp.ones_like(rollout.terminated),
    )  # fmt: skip
    taken = jax.tree.map(lambda *parts: jnp.concatenate(parts), tail, new)
    window = n_step(taken.reward, taken.terminated, taken.truncated, discount=discount, steps=steps)
    length = rollout.reward.shape[0]
    first = jax.tree.map(lambda x: x[:length], taken)
    next_obs = take_steps(taken.next_obs, window.last)
    transitions = Transition(first.obs, first.action, window.reward, window.discount, next_obs)
    return jax.tree.map(lambda x: x[length:], taken), transitions, first.real
