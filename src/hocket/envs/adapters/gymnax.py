"""Adapter for gymnax environments (`pip install 'hocket[gymnax]'`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.env import Action, Obs, State, Step
from hocket.envs.spaces import Box, Discrete, Space, unbounded
from hocket.errors import check_options, unknown

try:
    import gymnax
    from gymnax.environments import spaces as gymnax_spaces
except ImportError as error:
    raise ImportError(
        "gymnax environments need the package gymnax. Run: pip install 'hocket[gymnax]'"
    ) from error


def make(name: str, **params: Any) -> GymnaxEnv:
    """Return the gymnax environment called `name`, with some of its parameters changed.

    `params` are parameters in the sense of gymnax, such as `max_steps_in_episode`. To pass
    arguments to the environment's constructor, use `GymnaxEnv(name, arguments={...})`.
    """
    if name not in gymnax.registered_envs:
        raise ValueError(unknown("gymnax environment", name, gymnax.registered_envs))
    defaults = gymnax.make(name)[1]
    check_options(params, vars(defaults), f"of `gymnax:{name}`", kinds=(bool, int, float, str))
    return GymnaxEnv(name, params)


def names() -> list[str]:
    """Return the names that `make` knows."""
    return sorted(gymnax.registered_envs)


@dataclass(frozen=True)
class GymnaxEnv:
    """An environment of gymnax 1.0 or later, given by its name, that keeps hocket's contract.

    It steps with `step_env`, which does not reset, so the final observation of an episode is kept.
    Episodes that gymnax's time limit ends are `truncated`. Observations get their space's dtype.
    """

    name: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that differ from gymnax's defaults."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the environment's constructor."""

    @cached_property
    def env(self) -> Any:
        return gymnax.make(self.name, **self.arguments)[0]

    @cached_property
    def params(self) -> Any:
        return gymnax.make(self.name, **self.arguments)[1].replace(**self.changed)

    def __post_init__(self) -> None:
        _ = self.env, self.params  # cached now, because in a trace they would keep its tracers

    def __hash__(self) -> int:
        return hash((self.name, *self.changed, *self.arguments))

    @property
    def observation_space(self) -> Space:
        with jax.ensure_compile_time_eval():
            return _space(self.env.observation_space(self.params))

    @property
    def action_space(self) -> Space:
        with jax.ensure_compile_time_eval():
            return _space(self.env.action_space(self.params))

    def reset(self, key: Array) -> tuple[State, Obs]:
        obs, state = self.env.reset_env(key, self.params)
        # A first state has Python numbers, but a loop needs arrays whose dtypes never change.
        state = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)
        return state, self._observation(obs)

    def step(self, state: State, action: Action, key: Array) -> tuple[State, Step]:
        obs, new, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        terminated = jnp.asarray(terminated, bool)
        truncated = self.env.is_truncated(new, self.params) & ~terminated
        new = jax.tree.map(lambda x, before: jnp.asarray(x, before.dtype), new, state)
        reward = jnp.asarray(reward, jnp.float32)
        return new, Step(self._observation(obs), reward, terminated, truncated)

    def _observation(self, obs: Obs) -> Obs:
        return jax.tree.map(
            lambda x, s: jnp.asarray(x, s.dtype), obs, self.observation_space.spec()
        )


def _space(space: Any) -> Box | Discrete:
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(space.n)
    if isinstance(space, gymnax_spaces.Box):
        low, high = (unbounded(x, np.float32) for x in (space.low, space.high))
        return Box(low, high, space.shape, space.dtype)
    raise ValueError(
        f"hocket supports only the spaces Box and Discrete of gymnax, found {space}. Write a "
        "`hocket.envs.Env` that calls the environment of gymnax and has such spaces."
    )
