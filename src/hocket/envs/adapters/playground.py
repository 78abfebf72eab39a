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

from hocket.envs.drawing import Cells, Picture
from hocket.envs.env import Action, Obs, State, Step, TimeLimit
from hocket.envs.spaces import Box, DictSpace, Space
from hocket.errors import check_options, unknown
from hocket.system.on_host import on_host

try:
    # The extra `test` is without them.
    from mujoco_playground import registry  # pyright: ignore[reportMissingImports]
    from mujoco_playground._src import mjx_env  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "environments of MuJoCo Playground need the package playground. "
        "Run: pip install 'hocket[playground]'"
    ) from error

NEVER = 2**30
"""A number of steps that no episode has."""

# MJX multiplies arrays of different ranks, also where someone asked JAX to refuse that.
_THEIR_HABITS = partial(jax.numpy_rank_promotion, "allow")


def make(name: str, **options: Any) -> PlaygroundEnv | TimeLimit:
    """The environment of Playground called `name`, with entries of its config changed.

    `max_steps` is its time limit: the config's `episode_length`, or None for none. `observe` picks
    an entry where observations are a dict, and None takes all. Physics are MJX's own, in JAX; with
    `impl="warp"` they are those of MuJoCo Warp, for NVIDIA's GPUs.
    """
    if name not in registry.ALL_ENVS:
        raise ValueError(unknown("environment of Playground", name, registry.ALL_ENVS))
    config: Any = registry.get_default_config(name)
    max_steps = options.pop("max_steps", int(config.episode_length))
    observe = options.pop("observe", "state")
    limit = {} if max_steps is None else {"max_steps": max_steps}
    known = _flat(config) | {"max_steps": 1000, "observe": None}
    check_options(options | limit, known, f"of `playground:{name}`", kinds=(bool, int, float, str))
    env = PlaygroundEnv(name, options, observe)
    return env if max_steps is None else TimeLimit(env, max_steps)


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """The entries of a nested config, `reward_config.scales.alive` and the like."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) or type(value).__name__ == "ConfigDict"
        found.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return found


@dataclass(frozen=True)
class PlaygroundEnv:
    """An environment of MuJoCo Playground (0.2 or later) by its name, under hocket's contract.

    Its `done` is `terminated`, unless it says itself that time is up; a limit is not its own
    business but `TimeLimit`'s. Actions are of -1 to 1. It draws random numbers from the key that an
    episode began with. A state that is no longer finite terminates, and nothing of it is seen.
    """

    name: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Entries of its config that are not Playground's, by their names with dots."""
    observe: str | None = "state"
    """Which entry of the observations, where they are a dict; None for all."""

    @cached_property
    def env(self) -> Any:
        config: Any = registry.get_default_config(self.name)
        # Some end an episode after so many steps, and call that done.
        changed = {"episode_length": NEVER, "impl": "jax", **self.changed}
        known = _flat(config)
        try:
            with on_host():
                return registry.load(
                    self.name, config, {key: x for key, x in changed.items() if key in known}
                )
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            raise RuntimeError(
                f"`playground:{self.name}` needs models of mujoco_menagerie, which Playground "
                f"fetches with git at first use, and that failed: {error}. Make it once where "
                f"there is a network, or put a copy into {mjx_env.MENAGERIE_PATH}."
            ) from error

    def __post_init__(self) -> None:
        _ = self.env  # made now: inside a trace its arrays would be the trace's
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
        with _THEIR_HABITS():
            state = self.env.reset(key)
        # Playground starts from Python numbers; a loop needs arrays of one dtype throughout.
        state = jax.tree.map(lambda x: jnp.asarray(x, _dtype(x)), state)
        return state, self._observation(state.obs)

    def step(self, state: State, action: Action, key: Array) -> tuple[State, Step]:
        with _THEIR_HABITS():
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
        """What MuJoCo renders; without a screen it needs `MUJOCO_GL=egl` or `osmesa`."""
        frame = np.asarray(self.env.render(state, height=240, width=360))
        return Picture((0, 0, 360, 240), [Cells(frame)])

    @cached_property
    def _first(self) -> State:
        """The shapes of a state."""
        with _THEIR_HABITS(), on_host():
            return jax.eval_shape(self.env.reset, jax.random.key(0))

    def _observation(self, obs: Obs) -> Obs:
        if not isinstance(obs, Mapping):
            return obs
        return dict(obs) if self.observe is None else obs[self.observe]


def _space(spec: Any) -> Space:
    if isinstance(spec, Mapping):
        return DictSpace({name: _space(x) for name, x in spec.items()})
    return Box(-np.inf, np.inf, spec.shape, spec.dtype)


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, Array) else jnp.result_type(x)
