"""Recording a policy: the episodes it plays, as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hocket.core.program.algorithm import Policy
from hocket.envs.drawing import Picture, Size, depict, paint, picture_of
from hocket.envs.env import Env
from hocket.envs.host import HostEnv
from hocket.envs.play.host_play import watch


class Recording(NamedTuple):
    """One or more episodes, one after another."""

    frames: np.ndarray
    """uint8 `[T, H, W, 3]`: every state, including the one after an episode's last step."""
    returns: list[float]
    """The return of each episode."""


class Moment(NamedTuple):
    """One moment of an episode, at its beginning or after a step."""

    state: Any
    obs: Any
    memory: Any
    total: Array
    """The return so far."""
    done: Array


def record(
    env: Env | HostEnv,
    policy: Policy,
    key: Array,
    *,
    episodes: int = 1,
    max_steps: int = 1000,
    size: Size = (480, 320),
    caption: bool = True,
) -> Recording:
    """Play `policy` in `env`, and paint every state as an image of `size`, `(width, height)`.

    An episode that does not end by itself is cut after `max_steps`. With `caption`, each frame
    shows the step and the return so far. An environment is drawn by its `draw`, or from its
    observation if that is a grid. Gymnasium environments render themselves. Needs
    `pip install 'hocket[video]'`.

        frames, returns = record(env, algorithm.policy(state), jax.random.key(0))
    """
    if episodes < 1 or max_steps < 1:
        raise ValueError(
            f"nothing to record: episodes={episodes}, max_steps={max_steps}. Use at least 1 for "
            "both."
        )
    if isinstance(env, HostEnv):
        shots = list(watch(env, policy, key, episodes=episodes, max_steps=max_steps))
        return _painted(shots, lambda shot: picture_of(shot.frame), size, caption)
    # Paints a first state, so that an environment without a drawing is refused before compiling.
    paint(depict(env, *jax.device_get(env.reset(key))), size)
    play = jax.jit(partial(_play, env, policy, max_steps))
    played = [_until_done(jax.device_get(play(k))) for k in jax.random.split(key, episodes)]
    return _painted(played, lambda x: depict(env, x.state, x.obs), size, caption)


def _painted(
    played: list[list[Any]], show: Callable[[Any], Picture], size: Size, caption: bool
) -> Recording:
    """Paint each moment of the episodes as a frame. A moment's `total` is the return so far."""
    # Filled in place, because stacking a list of frames at the end would need the memory twice.
    frames = np.empty((sum(map(len, played)), size[1], size[0], 3), np.uint8)
    captions = _captions(played) if caption else iter(lambda: "", None)
    moments = (moment for episode in played for moment in episode)
    for frame, moment, text in zip(frames, moments, captions, strict=False):
        frame[:] = paint(replace(show(moment), caption=text), size)
    return Recording(frames, [float(episode[-1].total) for episode in played])


def _play(env: Env, policy: Policy, max_steps: int, key: Array) -> Moment:
    """Return `max_steps + 1` moments of an episode. If it ends sooner, the last one is repeated."""

    def go_on(moment: Moment, key: Array) -> Moment:
        k_act, k_step = jax.random.split(key)
        action, memory = policy(moment.obs, moment.memory, k_act)
        state, step = env.step(moment.state, action, k_step)
        return Moment(state, step.obs, memory, moment.total + step.reward, step.done)

    def one_step(moment: Moment, key: Array) -> tuple[Moment, Moment]:
        onward = lax.cond(moment.done, lambda moment, _: moment, go_on, moment, key)
        return onward, moment._replace(memory=None)

    k_reset, k_steps = jax.random.split(key)
    memory = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), policy.memory)
    first = Moment(*env.reset(k_reset), memory, jnp.float32(0.0), jnp.bool_(False))
    return lax.scan(one_step, first, jax.random.split(k_steps, max_steps + 1))[1]


def _until_done(moments: Moment) -> list[Moment]:
    """Return the moments one by one, up to the first that is done."""
    count = int(moments.done.argmax()) + 1 if moments.done.any() else len(moments.done)
    return [jax.tree.map(lambda x, t=t: x[t], moments) for t in range(count)]


def _captions(played: Sequence[Sequence[Any]]) -> Iterator[str]:
    for number, episode in enumerate(played, 1):
        which = f"episode {number}   " if len(played) > 1 else ""
        for step, moment in enumerate(episode):
            yield f"{which}step {step}   return {float(moment.total):.4g}"
