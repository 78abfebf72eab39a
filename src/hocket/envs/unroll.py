"""Acting in a batch of environments: the loop with which every algorithm's `step` begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hocket.core.program.fragment import fragment
from hocket.core.program.loops import has_loops
from hocket.core.program.tuning import tuning
from hocket.envs import host_steps
from hocket.envs.env import Env, auto_reset
from hocket.envs.episode import EpisodeStats
from hocket.envs.host import HostEnv

# Legend: T steps of a rollout, N environments.


class Envs(NamedTuple):
    """A batch of running environments, `[N, ...]`. Each draws from a key of its own."""

    state: Any
    key: Array
    episode: EpisodeStats


class Actor(NamedTuple):
    """The state that acting carries from one step to the next, `[N, ...]`.

    `obs` is the observation to act on next, and `memory` is the policy's recurrent memory.
    """

    envs: Envs
    obs: Any
    memory: Any
    key: Array


class Rollout(NamedTuple):
    """The steps of a rollout, `[T, N, ...]`.

    `next_obs` is the observation to which the action led. At an episode's end it is the final one
    of that episode, not the first one of the next. Bootstrap from it wherever `terminated` is
    false, even if the episode was truncated.
    """

    obs: Any
    action: Any
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Any
    extras: Any
    """Whatever else `act` returned for each step."""
    memory: Any
    """The recurrent memory before the first step, `[N, ...]`: zero if an episode begins there."""
    episodes: dict[str, Array]
    """Sums over the episodes that ended in each environment, `[N]`: returns, lengths and counts."""

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated

    @property
    def first(self) -> Array:
        """True where memory must be set to zero, because an episode begins.

        It is always False at the first step, because `memory` is already zero if one begins there.
        """
        return jnp.concatenate([jnp.zeros_like(self.done[:1]), self.done[:-1]])


Act = Callable[[Any, Any, Array], tuple[Any, Any, Any]]


def init_actor(env: Env | HostEnv, key: Array, num_envs: int, memory: Any = None) -> Actor:
    """Return an actor at the beginning of `num_envs` episodes.

    `memory` is the memory for one environment when an episode begins, and must be zeros.
    """
    k_reset, k_envs, k_act = (jax.random.split(k, num_envs) for k in jax.random.split(key, 3))
    if isinstance(env, HostEnv):
        state = host_steps.begin(env, k_reset)
        obs = state.obs
    else:
        state, obs = jax.vmap(env.reset)(k_reset)
    episode, memory = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), (EpisodeStats.zeros(), memory)
    )
    return Actor(Envs(state, k_envs, episode), obs, memory, k_act)


def unroll(env: Env | HostEnv, act: Act, actor: Actor, length: int) -> tuple[Actor, Rollout]:
    """Act for `length` steps: `act(obs, memory, keys) -> (action, memory, extras)`, all `[N, ...]`.

    The environments are stepped in a fragment with the role `env`: a function that a plan can place
    on other devices than the policy. When an episode ends, the environment begins a new one, and
    its memory is set to zero. Each environment draws from a key of its own.
    """

    @fragment(role="env", name="env")
    def step_envs(envs: Envs, action: Any) -> tuple[Envs, Any, Any]:
        # A host environment's fragment is this call alone, so no program is compiled for it.
        if isinstance(env, HostEnv):
            state, episode, step = host_steps.step(env, envs.state, envs.episode, action)
            return Envs(state, envs.key, episode), state.obs, step

        pure = env

        def one(state: Any, key: Array, episode: EpisodeStats, action: Any) -> Any:
            key, k_step = jax.random.split(key)
            state, obs, step = auto_reset(pure, state, action, k_step)
            return Envs(state, key, episode.after(step)), obs, step

        return jax.vmap(one)(*envs, action)

    def one_step(actor: Actor, _: None) -> tuple[Actor, Any]:
        keys = jax.vmap(jax.random.split)(actor.key)
        action, memory, extras = _checked(act(actor.obs, actor.memory, keys[:, 1]), env)
        envs, obs, step = step_envs(actor.envs, action)
        memory = jax.tree.map(lambda m: jnp.where(_like(step.done, m), 0, m), memory)
        taken = (actor.obs, action, step.reward, step.terminated, step.truncated, step.obs, extras)
        return Actor(envs, obs, memory, keys[:, 0]), taken

    memory = actor.memory
    episode = jax.vmap(EpisodeStats.clear)(actor.envs.episode)
    actor = actor._replace(envs=actor.envs._replace(episode=episode))
    at_once = tuning().unroll
    if at_once > 1 and has_loops(one_step, actor, None):
        # A step that contains loops is not unrolled. PPO with 4,096 quadrupeds would be 15 %
        # faster, but compile in 33 s instead of 9 s, which pays off only after a billion steps.
        at_once = 1
    actor, taken = lax.scan(one_step, actor, None, length, unroll=at_once)
    ended = actor.envs.episode
    episodes = {
        "episode_return": ended.ended_return,
        "episode_length": ended.ended_length,
        "episode_count": ended.ended,
    }
    return actor, Rollout(*taken, memory=memory, episodes=episodes)


def _checked(acted: Any, env: Env | HostEnv) -> tuple[Any, Any, Any]:
    """Return what `act` returned, or refuse it if it has the wrong structure or shape."""
    if not (isinstance(acted, tuple) and len(acted) == 3):
        raise ValueError(
            f"`act` must return (action, memory, extras), but returned {type(acted).__name__}."
        )
    shape = jax.tree.map(lambda x: x.shape[1:], acted[0])
    wanted = jax.tree.map(lambda x: x.shape, env.action_space.spec())
    if shape != wanted:
        raise ValueError(
            f"`act` returned actions of shape {shape} for each environment, but those in "
            f"{env.action_space} have shape {wanted}. Return an array of such actions, with the "
            f"environments as its first axis."
        )
    return acted


def _like(flag: Array, x: Array) -> Array:
    """Append axes to `flag`, `[N]`, until it has as many as `x`, `[N, ...]`."""
    return flag.reshape(flag.shape + (1,) * (x.ndim - flag.ndim))
