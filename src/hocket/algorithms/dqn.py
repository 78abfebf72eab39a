"""DQN: deep Q-learning with a target network, double, dueling, n-step and prioritized.

Mnih et al. 2015, "Human-level control through deep reinforcement learning":
https://www.nature.com/articles/nature14236
The parts are those of Hessel et al. 2018, "Rainbow": https://arxiv.org/abs/1710.02298
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from hocket.core.algorithm import Policy
from hocket.core.fragment import fragment
from hocket.envs.env import Env
from hocket.envs.spaces import Discrete
from hocket.envs.unroll import Actor, Rollout, init_actor, unroll
from hocket.errors import unknown
from hocket.nn import ACTIVATIONS, Dueling, Network, network
from hocket.ops import double_q, huber, n_step, take_steps
from hocket.replay import device
from hocket.replay.device import Batch, Replay

# Legend: T steps of a rollout, N environments, B rows of a batch, A actions, n of n-step.


class Steps(NamedTuple):
    """Steps that were taken, `[..., N, ...]`."""

    obs: Any
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Any
    real: Array
    """False before the first step of the run: nothing happened there."""


class Transition(NamedTuple):
    """What the replay holds: n steps, or those up to the end of the episode."""

    obs: Any
    action: Array
    reward: Array
    """The discounted sum over the steps."""
    discount: Array
    """What the value of `next_obs` counts for; 0 after a termination."""
    next_obs: Any


class Learner(NamedTuple):
    params: Any
    target: Any
    """Parameters that follow slowly, to bootstrap from."""
    optimizer: Any
    progress: Array
    """How much of the budget is used, 0 to 1: exploration and weights follow it."""
    pace: Array
    """How much of the budget an update stands for."""


class State(NamedTuple):
    actor: Actor
    tail: Steps
    """The last n - 1 steps `[n - 1, N, ...]`, whose n steps are not over yet."""
    replay: Replay
    learner: Learner
    key: Array


@dataclass(frozen=True)
class DQN:
    """Deep Q-learning.

    hocket.run(DQN(env=make("CartPole-v1")))
    """

    env: Env
    env_steps: int = 500_000
    """Environment steps in all; exploration falls over the first of them."""
    num_envs: int = 16
    """Environments, where the run does not say."""
    length: int = 8
    """Steps of each environment in an iteration."""
    updates: int = 8
    """Batches that are learned from in an iteration."""
    batch_size: int = 128
    capacity: int = 65_536
    """Transitions in the replay; a power of two."""
    minimum: int = 2_000
    """Transitions in the replay before anything is learned."""
    learning_rate: float = 5e-4
    """Adam's."""
    discount: float = 0.99
    steps: int = 3
    """Rewards that are added up before bootstrapping: the n of n-step."""
    epsilon: tuple[float, float] = (1.0, 0.02)
    """Probability of a random action, at the beginning and after `exploration`."""
    exploration: float = 0.2
    """Part of the budget over which the probability of a random action falls."""
    alpha: float = 0.6
    """How much errors count when drawing from the replay; 0 draws uniformly."""
    beta: float = 0.4
    """How much the weights correct for that at the beginning; wholly (1) at the end."""
    target_rate: float = 0.01
    """How far the target parameters follow in an update."""
    max_gradient_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)
    """Layers before the value and the advantages."""
    activation: str = "relu"
    q_network: Network | None = None
    """Instead of the default one: from observations to action values `[..., A]`."""

    def init(self, key: Array, num_envs: int) -> State:
        k_network, k_actor, k_sample = jax.random.split(key, 3)
        actor = init_actor(self.env, k_actor, num_envs)
        obs = jax.tree.map(lambda x: x[0], actor.obs)
        action, number, flag = self._actions.zeros(), jnp.zeros(()), jnp.zeros((), bool)
        nothing = Steps(obs, action, number, flag, flag, obs, real=flag)
        params = self._network.init(k_network, obs)
        learner = Learner(
            params=params,
            target=params,
            optimizer=self._optimizer.init(params),
            progress=jnp.zeros(()),
            pace=jnp.asarray(num_envs * self.length / self.updates / self.env_steps, jnp.float32),
        )
        return State(
            actor=actor,
            tail=jax.tree.map(
                lambda x: jnp.zeros((self.steps - 1, num_envs, *x.shape), x.dtype), nothing
            ),
            replay=device.init(Transition(obs, action, number, number, obs), self.capacity),
            learner=learner,
            key=k_sample,
        )

    def step(self, state: State) -> tuple[State, dict[str, Array]]:
        actor, tail, replay, learner, key = state
        epsilon = self._epsilon(learner)
        act = partial(self.act, learner.params, epsilon)
        actor, rollout = unroll(self.env, act, actor, self.length)
        tail, transitions, real = self.assemble(tail, rollout)
        replay = self.insert(replay, transitions, real)

        def one_update(carry: tuple[Replay, Learner], uniforms: Array) -> tuple[Any, Any]:
            replay, learner = carry
            keys, batch = self.sample(replay, uniforms)
            learner, priority, metrics = self.update(learner, batch)
            replay, counts = self.reprioritize(replay, keys, priority)
            return (replay, learner), (metrics, counts)

        key, k_sample = jax.random.split(key)
        uniforms = jax.random.uniform(k_sample, (self.updates, self.batch_size))
        (replay, learner), (metrics, counts) = lax.scan(one_update, (replay, learner), uniforms)
        metrics = jax.tree.map(jnp.mean, metrics) | jax.tree.map(jnp.sum, counts)
        metrics = {**rollout.episodes, **metrics, "epsilon": epsilon}
        return State(actor, tail, replay, learner, key), metrics

    @fragment(role="act")
    def act(self, params: Any, epsilon: Array, obs: Any, memory: None, keys: Array) -> Any:
        q = self._network.apply(params, obs)
        return jax.vmap(self._choose, in_axes=(0, 0, None))(q, keys, epsilon), memory, None

    @fragment(role="act")
    def assemble(self, tail: Steps, rollout: Rollout) -> tuple[Steps, Transition, Array]:
        """The `[T, N]` transitions whose n steps are over now, and which of them are real."""
        new = Steps(*rollout[:6], real=jnp.ones_like(rollout.terminated))
        steps = jax.tree.map(lambda *parts: jnp.concatenate(parts), tail, new)
        target = n_step(
            steps.reward, steps.terminated, steps.truncated,
            discount=self.discount, steps=self.steps,
        )  # fmt: skip
        length = rollout.reward.shape[0]
        start, tail = (jax.tree.map(lambda x: x[at], steps) for at in _halves(length))
        next_obs = take_steps(steps.next_obs, target.last)
        transitions = Transition(start.obs, start.action, target.reward, target.discount, next_obs)
        return tail, transitions, start.real

    @fragment(role="replay")
    def insert(self, replay: Replay, transitions: Transition, real: Array) -> Replay:
        return device.insert(replay, transitions, real)

    @fragment(role="replay")
    def sample(self, replay: Replay, uniforms: Array) -> tuple[Array, Batch]:
        return device.sample(replay, uniforms, minimum=self.minimum)

    @fragment(role="replay")
    def reprioritize(self, replay: Replay, keys: Array, priority: Array) -> tuple[Replay, Any]:
        return device.reprioritize(replay, keys, priority)

    @fragment(role="learn")
    def update(self, learner: Learner, batch: Batch) -> tuple[Learner, Array, dict[str, Array]]:
        gradients, (error, metrics) = jax.grad(self._loss, has_aux=True)(
            learner.params, learner, batch
        )
        updates, optimizer = self._optimizer.update(gradients, learner.optimizer)
        params = optax.apply_updates(learner.params, updates)
        target = optax.incremental_update(params, learner.target, self.target_rate)
        before = (learner.params, learner.target, learner.optimizer)
        learned = jax.tree.map(
            partial(jnp.where, batch.ready), (params, target, optimizer), before
        )
        learner = Learner(*learned, progress=learner.progress + learner.pace, pace=learner.pace)
        return learner, (jnp.abs(error) + 1e-3) ** self.alpha, metrics

    def policy(self, state: State, explore: bool = False) -> Policy:
        params = state.learner.params
        epsilon = self._epsilon(state.learner)

        def act(obs: Any, memory: None, key: Array) -> tuple[Array, None]:
            q = self._network.apply(params, obs)
            return self._choose(q, key, epsilon) if explore else jnp.argmax(q), memory

        return Policy(act)

    def _loss(self, params: Any, learner: Learner, batch: Batch) -> tuple[Array, Any]:
        row: Transition = batch.rows
        q, q_t = (self._network.apply(params, obs) for obs in (row.obs, row.next_obs))
        q_t_target = self._network.apply(learner.target, row.next_obs)
        error = double_q(q, row.action, row.reward, row.discount, q_t_target, q_t)
        # Schaul et al. divide by the largest weight; the size of the replay cancels.
        beta = self.beta + (1.0 - self.beta) * learner.progress.clip(0.0, 1.0)
        weight = (batch.probability.min() / batch.probability) ** beta
        loss = jnp.mean(weight * huber(error))
        return loss, (error, {"loss": loss, "q": q.mean(), "td_error": jnp.abs(error).mean()})

    def _choose(self, q: Array, key: Array, epsilon: Array) -> Array:
        """The best action, or with probability `epsilon` any; of one environment."""
        k_random, k_action = jax.random.split(key)
        random = jax.random.uniform(k_random) < epsilon
        return jnp.where(random, self._actions.sample(k_action), jnp.argmax(q))

    def _epsilon(self, learner: Learner) -> Array:
        first, last = self.epsilon
        return first + (last - first) * (learner.progress / self.exploration).clip(0.0, 1.0)

    @property
    def _actions(self) -> Discrete:
        space = self.env.action_space
        if not isinstance(space, Discrete):
            raise ValueError(f"DQN needs one discrete action, found {space}. Use PPO instead.")
        return space

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.max_gradient_norm)
        return optax.chain(clip, optax.adam(self.learning_rate))

    @property
    def _network(self) -> Network:
        if self.activation not in ACTIVATIONS:
            raise ValueError(unknown("activation", self.activation, ACTIVATIONS))
        after: Any = (ACTIVATIONS[self.activation], Dueling(self._actions.n))
        *hidden, last = self.hidden
        return self.q_network or network(
            self.env.observation_space.spec(), last, hidden, self.activation,
            out_scale=math.sqrt(2), after=after,
        )  # fmt: skip


def _halves(length: int) -> tuple[slice, slice]:
    return slice(None, length), slice(length, None)
