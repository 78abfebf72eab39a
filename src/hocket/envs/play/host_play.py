"""Playing a policy in environments on the host: episodes to count, and episodes to look at."""

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
"""`act(obs, memory, keys) -> (action, memory)`, all `[n, ...]`."""


class Shot(NamedTuple):
    """An episode between two steps: what it looks like, and the return so far."""

    frame: np.ndarray
    total: float


def batched(policy: Policy) -> Act:
    """The policy for many observations at once, compiled."""
    return jax.jit(jax.vmap(policy.act))


def play(
    env: HostEnv, act: Act, memory: Any, key: Array, *, episodes: int, max_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play so many episodes side by side, each once, to its end: returns, lengths, which ended.

    `memory` is the policy's for one episode. An environment whose episode is over goes on with
    another, which nobody counts.
    """
    returns, lengths = np.zeros(episodes, np.float32), np.zeros(episodes, np.int32)
    ended = np.zeros(episodes, np.bool_)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *jnp.shape(x))), memory)
    k_seed, k_act = jax.random.split(key)
    live = env.open(episodes)
    try:
        obs = live.reset(_seeds(k_seed, episodes))
        for t in range(max_steps):
            action, memory = act(obs, memory, _keys(k_act, t, episodes))
            live.send(jax.device_get(action))
            step = live.recv()
            obs = step.obs
            returns[~ended] += step.reward[~ended]
            lengths[~ended] += 1
            ended |= step.terminated | step.truncated
            if ended.all():
                break
    finally:
        live.close()
    return returns, lengths, ended


def watch(
    env: HostEnv, policy: Policy, key: Array, *, episodes: int, max_steps: int
) -> Iterator[list[Shot]]:
    """Play episodes one after the other: all their shots, that after the last step included."""
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
    obs, total = stage.reset(int(_seeds(k_seed, 1)[0])), 0.0
    yield Shot(stage.frame(), total)
    for t in range(max_steps):
        action, memory = act(obs, memory, _keys(k_act, t, 1))
        obs, reward, done = stage.step(jax.device_get(action))
        total += reward
        yield Shot(stage.frame(), total)
        if done:
            return


class _ObservedStage:
    """An environment that shows nothing but what it observes: its newest frame."""

    def __init__(self, env: HostEnv) -> None:
        spec = env.observation_space.spec()
        is_image = (
            isinstance(spec, jax.ShapeDtypeStruct)
            and len(spec.shape) == 3
            and spec.dtype == np.uint8
        )
        if not is_image:
            raise ValueError(
                f"the environment `{env.name}` shows no pictures: it observes {spec}. Those of "
                f"Gymnasium do (`gymnasium:...`), and those that observe images."
            )
        self._live = env.open(1)
        self._seen: Any = None

    def reset(self, seed: int) -> Any:
        obs = self._seen = self._live.reset(np.array([seed], np.uint32))
        return obs

    def step(self, action: Any) -> tuple[Any, float, bool]:
        self._live.send(action)
        step = self._live.recv()
        self._seen = step.final_obs
        return step.obs, float(step.reward[0]), bool(step.terminated[0] | step.truncated[0])

    def frame(self) -> np.ndarray:
        image = self._seen[0]
        return image if image.shape[-1] == 3 else np.repeat(image[..., -1:], 3, axis=-1)

    def close(self) -> None:
        self._live.close()


def _seeds(key: Array, count: int) -> np.ndarray:
    return np.asarray(jax.random.bits(key, (count,), jnp.uint32))


@partial(jax.jit, static_argnums=2)
def _keys(key: Array, t: int, count: int) -> Array:
    return jax.random.split(jax.random.fold_in(key, t), count)
