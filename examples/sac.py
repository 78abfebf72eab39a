"""Soft actor-critic with twin critics and an automatic temperature, written from the docs alone.

    python examples/sac.py                      # Pendulum-v1, a minute or two on one CPU core

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications":
https://arxiv.org/abs/1812.05905

Shapes: T steps of N environments `[T, N, ...]`; U updates an iteration, of B rows `[U, B, ...]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from hocket import Policy, averaged, fragment, make, run
from hocket.envs import Actor, Box, Env, Rollout, init_actor, unroll
from hocket.nn.layers import MLP
from hocket.nn.networks import Network
from hocket.ops import TanhNormal
from hocket.replay import device
from hocket.replay.device import Draw, Replay
from hocket.replay.transitions import Transition, example

Metrics = dict[str, Array]


class Params(NamedTuple):
    policy: Any
    critics: Any
    """Both critics, stacked: every leaf is `[2, ...]`."""
    log_alpha: Array


class Learner(NamedTuple):
    params: Params
    target: Any
    """The moving average of the critics."""
    optimizer: Any


class State(NamedTuple):
    actor: Actor
    replay: Replay
    learner: Learner
    key: Array


@dataclass(frozen=True)
class SAC:
    """Soft actor-critic for vector observations and bounded vector actions.

    The three losses share one gradient step: each has no gradient in the others' parameters.
    """

    env: Env
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 40_000
    num_envs: int = 8
    length: int = 4
    """Steps of every environment in an iteration."""
    updates: int = 32
    """Gradient steps in an iteration."""
    batch_size: int = 128
    capacity: int = 65_536
    """Rows of the replay, a power of two."""
    warmup: int = 1_000
    """Rows in the replay before anything is learned."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    target_rate: float = 0.005
    """How far the target critics move at every update."""

    def init(self, key: Array, num_envs: int) -> State:
        k_actor, k_policy, k_critics, key = jax.random.split(key, 4)
        actor = init_actor(self.env, k_actor, num_envs)
        obs, action = actor.obs[0], self.actions.zeros()
        critics = jax.vmap(self.critic_network.init, in_axes=(0, None))(
            jax.random.split(k_critics), jnp.concatenate([obs, action])
        )
        params = Params(self.policy_network.init(k_policy, obs), critics, jnp.zeros(()))
        learner = Learner(params, critics, self.optimizer.init(params))
        return State(actor, device.init(example(obs, action), self.capacity), learner, key)

    def step(self, state: State) -> tuple[State, Metrics]:
        key, k_recall, k_improve = jax.random.split(state.key, 3)
        choose = partial(self.choose, state.learner.params.policy)
        actor, rollout = unroll(self.env, choose, state.actor, self.length)
        replay = self.remember(state.replay, rollout)
        batches = self.recall(replay, k_recall)
        learner, metrics = self.improve(state.learner, batches, k_improve)
        return State(actor, replay, learner, key), {**rollout.episodes, **metrics}

    @fragment(role="act")
    def choose(self, params: Any, obs: Array, memory: Any, keys: Array) -> tuple[Array, Any, Array]:
        squashed = self.distribution(params, obs).sample_each(keys)
        return self.scale(squashed), memory, squashed

    @fragment(role="replay")
    def remember(self, replay: Replay, rollout: Rollout) -> Replay:
        discount = self.discount * (1.0 - rollout.terminated)
        rows = Transition(rollout.obs, rollout.extras, rollout.reward, discount, rollout.next_obs)
        return device.insert(replay, rows, jnp.ones_like(rollout.terminated))

    @fragment(role="replay")
    def recall(self, replay: Replay, key: Array) -> Draw:
        """Draw batches `[U, B, ...]` for the whole iteration, which then cross places once."""
        uniforms = jax.random.uniform(key, (self.updates, self.batch_size))
        return jax.vmap(lambda u: device.sample(replay, u, minimum=self.warmup)[1])(uniforms)

    @fragment(role="learn")
    def improve(self, learner: Learner, batches: Draw, key: Array) -> tuple[Learner, Metrics]:
        keys = jax.random.split(key, self.updates)
        learner, metrics = jax.lax.scan(self.update, learner, (batches, keys))
        return learner, jax.tree.map(lambda x: averaged(x.mean()), metrics)

    def update(self, learner: Learner, x: tuple[Draw, Array]) -> tuple[Learner, Metrics]:
        batch, key = x  # [B, ...]
        gradient = jax.grad(self.loss, has_aux=True)
        gradients, metrics = gradient(learner.params, learner.target, batch.rows, key)
        updates, optimizer = self.optimizer.update(averaged(gradients), learner.optimizer)
        params = jax.tree.map(jnp.add, learner.params, updates)
        target = optax.incremental_update(params.critics, learner.target, self.target_rate)
        new = Learner(params, target, optimizer)
        return jax.tree.map(partial(jnp.where, batch.ready), new, learner), metrics

    def loss(
        self, params: Params, target: Any, rows: Transition, key: Array
    ) -> tuple[Array, Metrics]:
        k_now, k_next = jax.random.split(key)
        fixed = jax.lax.stop_gradient(params)
        alpha = jnp.exp(fixed.log_alpha)

        next_policy = self.distribution(fixed.policy, rows.next_obs)
        next_action, next_log_prob = next_policy.sample_and_log_prob(k_next)
        next_q = self.q_values(target, rows.next_obs, next_action).min(0)
        target_q = rows.reward + rows.discount * (next_q - alpha * next_log_prob)
        error = self.q_values(params.critics, rows.obs, rows.action) - target_q[None]
        critic_loss = 0.5 * jnp.square(error).sum(0).mean()

        action, log_prob = self.distribution(params.policy, rows.obs).sample_and_log_prob(k_now)
        q = self.q_values(fixed.critics, rows.obs, action).min(0)
        policy_loss = (alpha * log_prob - q).mean()

        # The target entropy is minus the number of actions, the paper's choice.
        surplus = -jax.lax.stop_gradient(log_prob).mean() + action.shape[-1]
        metrics = {"critic_loss": critic_loss, "policy_loss": policy_loss, "alpha": alpha}
        return critic_loss + policy_loss + params.log_alpha * surplus, metrics

    def policy(self, state: State, explore: bool = False) -> Policy:
        def act(obs: Array, memory: Any, key: Array) -> tuple[Array, Any]:
            choices = self.distribution(state.learner.params.policy, obs)
            return self.scale(choices.sample(key) if explore else choices.mode()), memory

        return Policy(act)

    def distribution(self, params: Any, obs: Array) -> TanhNormal:
        mean, log_std = jnp.split(self.policy_network.apply(params, obs), 2, axis=-1)
        return TanhNormal(mean, jnp.clip(log_std, -5.0, 2.0))

    def q_values(self, params: Any, obs: Array, action: Array) -> Array:
        """Return the values of both critics, `[2, B]`."""
        both = jax.vmap(self.critic_network.apply, in_axes=(0, None))
        return both(params, jnp.concatenate([obs, action], axis=-1)).squeeze(-1)

    def scale(self, squashed: Array) -> Array:
        """Scale actions from (-1, 1), which the networks see, to the environment's bounds."""
        low, high = jnp.asarray(self.actions.low), jnp.asarray(self.actions.high)
        return low + 0.5 * (squashed + 1.0) * (high - low)

    @property
    def actions(self) -> Box:
        space = self.env.action_space
        if not (isinstance(space, Box) and space.bounded and len(space.shape) == 1):
            raise ValueError(f"SAC needs a bounded `Box` of one axis as action space, not {space}.")
        return space

    @property
    def policy_network(self) -> Network:
        return MLP((*self.hidden, 2 * self.actions.shape[0]), "relu", out_scale=0.01)

    @property
    def critic_network(self) -> Network:
        return MLP((*self.hidden, 1), "relu", out_scale=1.0)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


if __name__ == "__main__":
    result = run(SAC(env=make("Pendulum-v1")))
    print(f"mean return {result.return_mean:.0f} after {result.env_steps:,} environment steps")
    print(result.timings)
