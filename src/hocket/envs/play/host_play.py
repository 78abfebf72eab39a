"""Playing a policy in environments on the host, and watching it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.core.program.algorithm import Policy
from hocket.envs.host import Filmable, HostEnv, Stage

Act = Callable[[Any, Any, Array], tuple[Any, Any]]
"""A batched policy: `act(obs, memory, keys) -> (action, memory)`, all `[n, ...]`."""


class Shot(NamedTuple):
    """One moment of an episode: its image, and the return so far."""

    frame: np.ndarray
    total: float


def batched(policy: Policy) -> Act:
    """Compile a policy for a batch of observations."""
    return jax.jit(jax.vmap(policy.act))


def watch(
    env: HostEnv, policy: Policy, key: Array, *, episodes: int, max_steps: int
) -> Iterator[list[Shot]]:
    """Play episodes one after another, and yield each as a list of shots.

    The first shot is of the episode's beginning, and one more follows after every step.
    """
    act = batched(policy)
    stage: Stage = env.stage() if isinstance(env, Filmable) else _ObservedStage(env)
    try:
        for k_episode in jax.random.split(key, episodes):
            yield list(_watched(stage, act, policy.memory, k_episode, max_steps))
    finally:
        stage.close()


def _watched(stage: Stage, act: Act, memory: Any, key: Array, max_steps: int) -> Iterator[Shot]:
    memory = jax.tree.map(lambda x: jnp.asarray(x)[None], memory)
    k_seed, k_act = jax.random.split(key)
    obs, total = stage.reset(int(seeds(k_seed, 1)[0])), 0.0
    yield Shot(stage.frame(), total)
    for t in range(max_steps):
        action, memory = act(obs, memory, step_keys(k_act, t, 1))
        obs, reward, done = stage.step(jax.device_get(action))
        total += reward
        yield Shot(stage.frame(), total)
        if done:
            return


class _ObservedStage:
    """A `Stage` for an environment that cannot render. It shows the newest image observation."""

    def __init__(self, env: HostEnv) -> None:
        spec = env.observation_space.spec()
        is_image = (
            isinstance(spec, jax.ShapeDtypeStruct)
            and len(spec.shape) == 3
            and spec.dtype == np.uint8
        )
        if not is_image:
            raise ValueError(
                f"the environment `{env.name}` cannot be recorded: it does not render, and its "
                f"observations are {spec}, not images. Use an environment of Gymnasium "
                f"(`gymnasium:...`), or one whose observations are uint8 [H, W, C]."
            )
        self._live = env.open(1)
        self._obs: Any = None

    def reset(self, seed: int) -> Any:
        self._obs = self._live.reset(np.array([seed], np.uint32))
        return self._obs

    def step(self, action: Any) -> tuple[Any, float, bool]:
        self._live.send(action)
        step = self._live.recv()
        self._obs = step.final_obs
        return step.obs, float(step.reward[0]), bool(step.terminated[0] | step.truncated[0])

    def frame(self) -> np.ndarray:
        image = self._obs[0]
        return image if image.shape[-1] == 3 else np.repeat(image[..., -1:], 3, axis=-1)

    def close(self) -> None:
        self._live.close()


def seeds(key: Array, count: int) -> np.ndarray:
    """Draw seeds for `LiveEnvs.reset`."""
    return np.asarray(jax.random.bits(key, (count,), jnp.uint32))


@partial(jax.jit, static_argnums=2)
def step_keys(key: Array, t: int, count: int) -> Array:
    """Return a key for each environment in step `t`."""
    return jax.random.split(jax.random.fold_in(key, t), count)
