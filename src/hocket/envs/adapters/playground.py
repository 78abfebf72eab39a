"""Adapter for MuJoCo Playground: robots in MJX (`pip install 'hocket[playground]'`)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.drawing import Picture, picture_of
from hocket.envs.env import Action, Obs, State, Step, TimeLimit
from hocket.envs.spaces import Box, DictSpace, Space
from hocket.errors import check_options, unknown
from hocket.system.on_host import on_host

try:
    # The extra `test` does not install it, so pyright may not find it.
    from mujoco_playground import registry  # pyright: ignore[reportMissingImports]
    from mujoco_playground._src import mjx_env  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "environments of MuJoCo Playground need the package playground. "
        "Run: pip install 'hocket[playground]'"
    ) from error

NEVER = 2**30
"""A number of steps that no episode reaches."""

# MJX relies on rank promotion, so it is allowed here even if the user has turned it off.
_PROMOTION = partial(jax.numpy_rank_promotion, "allow")


def make(name: str, **options: Any) -> PlaygroundEnv | TimeLimit:
    """Return the environment of Playground called `name`, with entries of its config changed.

    `max_steps` is the time limit. It is `episode_length` of the config by default, and None means
    no limit. If observations are a dict, `observe` picks one of its entries; None keeps them all.
    The physics run in MJX's JAX code by default. `impl="warp"` runs them in MuJoCo Warp, which
    needs an NVIDIA GPU.
    """
    if name not in registry.ALL_ENVS:
        raise ValueError(unknown("environment of Playground", name, registry.ALL_ENVS))
    config: Any = registry.get_default_config(name)
    max_steps = options.pop("max_steps", int(config.episode_length))
    observe = options.pop("observe", "state")
    limit = {} if max_steps is None else {"max_steps": max_steps}
    known, where = _flat(config) | {"max_steps": 1000, "observe": None}, f"of `playground:{name}`"
    check_options(options | limit, known, where, kinds=(bool, int, float, str))
    env = PlaygroundEnv(name, options, observe)
    return env if max_steps is None else TimeLimit(env, max_steps)


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the entries of a nested config, with names such as `reward_config.scales.alive`."""
    entries: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) or type(value).__name__ == "ConfigDict"
        entries |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return entries


@dataclass(frozen=True)
class PlaygroundEnv:
    """An environment of MuJoCo Playground 0.2 or later, given by its name, with hocket's contract.

    Playground's `done` becomes `truncated` if `time_out` is reported with it, else `terminated`.
    Playground's own time limit is off; `TimeLimit` counts steps instead. Actions are from -1 to 1.
    All random numbers come from the key with which the episode began. A state that is no longer
    finite terminates the episode, and its observation and reward are replaced by zeros.
    """

    name: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Config entries that differ from Playground's, by their dotted names."""
    observe: str | None = "state"
    """The entry to use if observations are a dict; None for all entries."""

    @cached_property
    def env(self) -> Any:
        config: Any = registry.get_default_config(self.name)
        # Some environments count steps themselves and report their time limit as `done`, so the
        # limit is set out of reach.
        changed = {"episode_length": NEVER, "impl": "jax", **self.changed}
        known = _flat(config)
        try:
            with on_host():
                return registry.load(
                    self.name, config, {key: x for key, x in changed.items() if key in known}
                )
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise RuntimeError(
                f"`playground:{self.name}` needs models from mujoco_menagerie. Playground fetches "
                f"them with git at first use, which failed: {error}. Make the environment once "
                f"with git installed and network access, or put a copy of mujoco_menagerie into "
                f"{mjx_env.MENAGERIE_PATH}."
            ) from error

    def __post_init__(self) -> None:
        _ = self.env  # cached now, because in a trace it would keep its tracers
        entries = self._first.obs
        picks = isinstance(entries, Mapping) and self.observe is not None
        if picks and self.observe not in entries:
            where = f"of `playground:{self.name}`"
            raise ValueError(unknown("observation", str(self.observe), entries, where=where))

    def __hash__(self) -> int:
        return hash((self.name, *self.changed, self.observe))

    def __reduce__(self) -> Any:
        return PlaygroundEnv, (self.name, self.changed, self.observe)

    @property
    def observation_space(self) -> Space:
        return _space(self._observation(self._first.obs))

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 1.0, shape=(self.env.action_size,))

    def reset(self, key: Array) -> tuple[State, Obs]:
        with _PROMOTION():
            state = self.env.reset(key)
        # A first state has Python numbers, but a loop needs arrays whose dtypes never change.
        state = jax.tree.map(
            lambda x: x if isinstance(x, Array) else jnp.asarray(x, jnp.result_type(x)), state
        )
        return state, self._observation(state.obs)

    def step(self, state: State, action: Action, key: Array) -> tuple[State, Step]:
        with _PROMOTION():
            new = self.env.step(state, action)
        new = jax.tree.map(lambda x, before: jnp.asarray(x, before.dtype), new, state)
        obs, reward = self._observation(new.obs), jnp.asarray(new.reward, jnp.float32)
        sound = jnp.isfinite(sum(x.sum() for x in jax.tree.leaves(obs)) + reward)
        done = new.done.astype(bool)
        late = jnp.asarray(new.info.get("time_out", 0.0)).astype(bool) & sound
        return new, Step(
            obs=jax.tree.map(lambda x: jnp.where(sound, x, 0.0), obs),
            reward=jnp.where(sound, reward, 0.0),
            terminated=(done | ~sound) & ~late,
            truncated=done & late,
        )

    def draw(self, state: State) -> Picture:
        """Return MuJoCo's rendering. Without a screen, set `MUJOCO_GL` to `egl` or `osmesa`."""
        return picture_of(np.asarray(self.env.render(state, height=240, width=360)))

    @cached_property
    def _first(self) -> State:
        """The shapes and dtypes of a state."""
        with _PROMOTION(), on_host():
            return jax.eval_shape(self.env.reset, jax.random.key(0))

    def _observation(self, obs: Obs) -> Obs:
        if not isinstance(obs, Mapping):
            return obs
        return dict(obs) if self.observe is None else obs[self.observe]


def _space(spec: Any) -> Space:
    if isinstance(spec, Mapping):
        return DictSpace({name: _space(x) for name, x in spec.items()})
    return Box(-np.inf, np.inf, spec.shape, spec.dtype)
