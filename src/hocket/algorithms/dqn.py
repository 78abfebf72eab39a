"""DQN: deep Q-learning with a target network; double, dueling, n-step and prioritized.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518.
The extensions are from Hessel et al. 2018, "Rainbow": https://arxiv.org/abs/1710.02298
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen
from jax import Array, lax

from hocket.core.program.algorithm import Policy
from hocket.core.program.fragment import fragment
from hocket.envs import Actor, Discrete, Env, HostEnv, Rollout, init_actor, unroll
from hocket.errors import check_at_least
from hocket.nn.layers import Dueling
from hocket.nn.networks import Network, encoder
from hocket.ops import clipped_adam, descend, double_q, huber
from hocket.replay import memory
from hocket.replay.device import Draw
from hocket.replay.transitions import Tail, Transition, example, init_tail, join


class Learner(NamedTuple):
    params: Any
    target: Any
    """The target network's parameters, which follow `params` slowly."""
    optimizer: Any
    progress: Array
    """The fraction of `env_steps` used so far. Exploration and learning rate fall with it."""
    pace: Array
    """The fraction of `env_steps` that each update adds to `progress`."""


class State(NamedTuple):
    actor: Actor
    tail: Tail
    replay: Any
    learner: Learner
    key: Array


@dataclass(frozen=True)
class DQN:
    """Deep Q-learning: `hocket.run(DQN(env=make("CartPole-v1")))`."""

    env: Env | HostEnv
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 500_000
    """The total number of environment steps. The learning rate falls to zero over them."""
    num_envs: int = 16
    """The number of environments. `hocket.run` and a search of slices can override it."""
    length: int = 8
    """Steps of each environment in an iteration."""
    updates: int = 8
    """Gradient steps in an iteration, each on a batch of its own."""
    batch_size: int = 128
    """Transitions in a batch."""
    capacity: int = 65_536
    """The largest number of transitions in the replay. Must be a power of two."""
    min_size: int = 2_000
    """Transitions that the replay must hold before anything is learned."""
    learning_rate: float = 5e-4
    """The learning rate of Adam at the beginning of the run."""
    discount: float = 0.99
    """The discount factor: the weight of a reward that comes one step later."""
    steps: int = 3
    """The n of n-step returns: how many rewards are summed before bootstrapping."""
    epsilon: tuple[float, float] = (1.0, 0.02)
    """Two probabilities of a random action: at the beginning, and once `exploration` has passed."""
    exploration: float = 0.2
    """The fraction of `env_steps` over which `epsilon` goes from its first to its last value."""
    alpha: float = 0.6
    """The exponent of prioritized replay: how much a transition's TD error raises its chance of
    being drawn. 0 draws uniformly."""
    beta: float = 0.4
    """The exponent of the importance weights, which correct for drawing by TD error. 1 corrects
    fully."""
    rate_new: bool = False
    """Let actors set the priority of each new transition from its TD error, as in Ape-X. Otherwise
    new transitions get the highest priority so far."""
    target_rate: float = 0.005
    """The fraction by which an update moves the target network toward the current parameters."""
    max_gradient_norm: float = 10.0
    """The largest norm of a gradient. Larger gradients are scaled down to this norm."""
    hidden: tuple[int, ...] = (128, 128)
    """The sizes of the dense layers before the dueling heads."""
    activation: str = "relu"
    """The activation function of the layers in `hidden`."""
    q_network: Network | None = None
    """A network that replaces the default one. Maps observations to a value for each action."""

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "env_steps", "num_envs", "length", "updates", "batch_size", "capacity",
            "steps", "hidden",
        )  # fmt: skip

    def init(self, key: Array, num_envs: int) -> State:
        k_network, k_actor, k_sample = jax.random.split(key, 3)
        actor = init_actor(self.env, k_actor, num_envs)
        obs = jax.tree.map(lambda x: x[0], actor.obs)
        action = self._actions.zeros()
        params = self._network.init(k_network, obs)
        pace = jnp.asarray(num_envs * self.length / self.updates / self.env_steps, jnp.float32)
        learner = Learner(params, params, self._optimizer.init(params), jnp.zeros(()), pace)
        tail = init_tail(obs, action, num_envs, steps=self.steps)
        replay = memory.init(example(obs, action), self.capacity)
        return State(actor, tail, replay, learner, k_sample)

    def step(self, state: State) -> tuple[State, dict[str, Array]]:
        actor, tail, replay, learner, key = state
        epsilon = self._epsilon(learner)
        act = partial(self.act, learner.params, epsilon)
        actor, rollout = unroll(self.env, act, actor, self.length)
        tail, transitions, real = self.assemble(tail, rollout)
        priority = self.rate(learner.params, transitions) if self.rate_new else None
        replay = self.insert(replay, transitions, real, priority)

        def one_update(carry: tuple[Any, Learner], uniforms: Array) -> tuple[Any, Any]:
            replay, learner = carry
            keys, batch = self.sample(replay, uniforms)
            learner, priority, metrics = self.update(learner, batch)
            replay, counts = self.reprioritize(replay, keys, priority)
            return (replay, learner), (metrics, counts)

        key, k_sample = jax.random.split(key)
        uniforms = jax.random.uniform(k_sample, (self.updates, self.batch_size))
        (replay, learner), (metrics, counts) = lax.scan(one_update, (replay, learner), uniforms)
        metrics = jax.tree.map(jnp.mean, metrics) | jax.tree.map(jnp.sum, counts)
        state = State(actor, tail, replay, learner, key)
        return state, {**rollout.episodes, **metrics, "epsilon": epsilon}

    @fragment(role="act")
    def act(self, params: Any, epsilon: Array, obs: Any, memory: None, keys: Array) -> Any:
        q = self._network.apply(params, obs)
        return jax.vmap(self._choose, in_axes=(0, 0, None))(q, keys, epsilon), memory, None

    @fragment(role="act")
    def assemble(self, tail: Tail, rollout: Rollout) -> tuple[Tail, Transition, Array]:
        return join(tail, rollout, discount=self.discount, steps=self.steps)

    @fragment(role="act")
    def rate(self, params: Any, transitions: Transition) -> Array:
        """Return the priorities of transitions, computed from their TD errors.

        Actors have no target network, so `params` serve for both networks of the TD error.
        """
        error, _ = jax.vmap(partial(self._error, params, params))(transitions)
        return self._priority(error)

    @fragment(role="replay")
    def insert(self, replay: Any, rows: Transition, real: Array, priority: Array | None) -> Any:
        return memory.insert(replay, rows, real, priority)

    @fragment(role="replay")
    def sample(self, replay: Any, uniforms: Array) -> tuple[Array, Draw]:
        return memory.sample(replay, uniforms, minimum=self.min_size)

    @fragment(role="replay")
    def reprioritize(self, replay: Any, keys: Array, priority: Array) -> tuple[Any, Any]:
        return memory.reprioritize(replay, keys, priority)

    @fragment(role="learn")
    def update(self, learner: Learner, batch: Draw) -> tuple[Learner, Array, dict[str, Array]]:
        gradients, (error, metrics) = jax.grad(self._loss, has_aux=True)(
            learner.params, learner.target, batch
        )
        direction, optimizer = self._optimizer.update(gradients, learner.optimizer)
        rate = self.learning_rate * (1.0 - learner.progress).clip(0.0)
        params = descend(learner.params, direction, rate)
        target = optax.incremental_update(params, learner.target, self.target_rate)
        # Keep the old learner until the replay has enough rows (`ready`). A mask does this, not a
        # `cond`: the fragments inside a `cond` must share a place, and the replay may have its own.
        learned = jax.tree.map(
            partial(jnp.where, batch.ready), (params, target, optimizer), learner[:3]
        )
        learner = Learner(*learned, progress=learner.progress + learner.pace, pace=learner.pace)
        return learner, self._priority(error), metrics

    def policy(self, state: State, explore: bool = False) -> Policy:
        params, epsilon = state.learner.params, self._epsilon(state.learner)

        def act(obs: Any, memory: None, key: Array) -> tuple[Array, None]:
            q = self._network.apply(params, obs)
            return self._choose(q, key, epsilon) if explore else jnp.argmax(q), memory

        return Policy(act)

    def _loss(self, params: Any, target: Any, batch: Draw) -> tuple[Array, Any]:
        error, q = self._error(params, target, batch.rows)
        # As in the paper, weights are divided by the largest one, which cancels the replay's size.
        loss = jnp.mean((batch.probability.min() / batch.probability) ** self.beta * huber(error))
        return loss, (error, {"loss": loss, "q": q.mean(), "td_error": jnp.abs(error).mean()})

    def _error(self, params: Any, target: Any, row: Transition) -> tuple[Array, Array]:
        q, q_t = (self._network.apply(params, obs) for obs in (row.obs, row.next_obs))
        q_t_target = self._network.apply(target, row.next_obs)
        return double_q(q, row.action, row.reward, row.discount, q_t_target, q_t), q

    def _priority(self, error: Array) -> Array:
        return (jnp.abs(error) + 1e-3) ** self.alpha

    def _choose(self, q: Array, key: Array, epsilon: Array) -> Array:
        """Choose one environment's action: the best, or with probability `epsilon` a random one."""
        k_random, k_action = jax.random.split(key)
        other = self._actions.sample(k_action)
        return jnp.where(jax.random.uniform(k_random) < epsilon, other, jnp.argmax(q))

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
        return clipped_adam(self.max_gradient_norm, epsilon=1e-8)

    @property
    def _network(self) -> Network:
        return self.q_network or linen.Sequential([
            encoder(self.env.observation_space.spec(), self.hidden, self.activation),
            Dueling(self._actions.n),
        ])  # fmt: skip
