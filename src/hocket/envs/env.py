"""The contract of a pure environment, and what makes episodes end and begin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.drawing import Picture, drawn
from hocket.envs.spaces import Space

State: TypeAlias = Any
Obs: TypeAlias = Any
Action: TypeAlias = Any


class Step(NamedTuple):
    """What one step of one environment gives back.

    `obs` is the observation after the step, also where it is an episode's last. `terminated` says
    that the episode is over and worth nothing more; `truncated` that it was only cut short. Never
    both.
    """

    obs: Obs
    reward: Array
    terminated: Array
    truncated: Array

    @property
    def done(self) -> Array:
        """Whether the episode ended here, one way or the other."""
        return self.terminated | self.truncated


@runtime_checkable
class Env(Protocol):
    """One pure environment: `vmap` makes many of it, `scan` runs it, and nothing is hidden in it.

    An implementation is a frozen dataclass whose fields are its parameters. Observations and
    actions are as the spaces say, rewards float32 scalars, `terminated` and `truncated` bool
    scalars, and `step` returns a state of the structure, shapes and dtypes it was given. `step`
    starts no new episode: `auto_reset` does. `hocket.envs.check_env` verifies all of this.
    """

    @property
    def observation_space(self) -> Space: ...

    @property
    def action_space(self) -> Space: ...

    def reset(self, key: Array) -> tuple[State, Obs]:
        """Start an episode."""
        ...

    def step(self, state: State, action: Action, key: Array) -> tuple[State, Step]:
        """Take one step; `key` is for this step alone."""
        ...


def auto_reset(env: Env, state: State, action: Action, key: Array) -> tuple[State, Obs, Step]:
    """Step, and where the episode ends start the next: `(state, obs, step)` to go on from.

    `obs` is what to act on next, the first observation of the new episode after an end. `step.obs`
    is where the action led, the final observation at an end: what to bootstrap from.
    """
    # Folded, not split: XLA drops it where `step` draws nothing, and a rollout of CartPole is twice
    # as fast (64 environments, CPU). Only a split into 2**32 keys would meet this fold again.
    state, step = env.step(state, action, jax.random.fold_in(key, np.uint32(2**32 - 1)))
    # Always computed: under `vmap` a `cond` would become this select anyway.
    first = env.reset(key)
    onward = jax.tree.map(partial(jnp.where, step.done), first, (state, step.obs))
    return *onward, step


class TimeLimitState(NamedTuple):
    """The state of the environment inside, and how many steps this episode has had."""

    env: State
    steps: Array


@dataclass(frozen=True)
class TimeLimit:
    """`env`, with episodes truncated after `max_steps` steps unless they terminate there."""

    env: Env
    max_steps: int

    @property
    def observation_space(self) -> Space:
        return self.env.observation_space

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    def reset(self, key: Array) -> tuple[TimeLimitState, Obs]:
        state, obs = self.env.reset(key)
        return TimeLimitState(state, jnp.zeros((), jnp.int32)), obs

    def step(
        self, state: TimeLimitState, action: Action, key: Array
    ) -> tuple[TimeLimitState, Step]:
        inner, step = self.env.step(state.env, action, key)
        steps = state.steps + 1
        truncated = step.truncated | ((steps >= self.max_steps) & ~step.terminated)
        return TimeLimitState(inner, steps), step._replace(truncated=truncated)

    def draw(self, state: TimeLimitState) -> Picture:
        return drawn(self.env, state.env)
