"""A2C: the advantage actor-critic, with one gradient step for each rollout.

This is the synchronous form of A3C: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement
Learning", https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array, lax

from hocket.algorithms.actor_critic import Agent, Learner, State, agent_for, one_step
from hocket.core.program.algorithm import Policy
from hocket.core.program.fragment import fragment
from hocket.envs import Env, HostEnv, Rollout, unroll
from hocket.errors import check_at_least
from hocket.nn.networks import Network
from hocket.ops import calm_adam, gae


@dataclass(frozen=True)
class A2C:
    """The advantage actor-critic, with or without a recurrent layer.

    hocket.run(A2C(env=make("CartPole-v1")))
    """

    env: Env | HostEnv
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 1_000_000
    """The total number of environment steps to train for."""
    num_envs: int = 64
    """The number of environments. `hocket.run` and a search of slices can override it."""
    length: int = 16
    """Steps of each environment in an iteration. Gradients through time go no further back."""
    learning_rate: float = 2e-3
    """The learning rate of Adam at the beginning of the run."""
    anneal: bool = True
    """Let the learning rate fall linearly, to zero after `env_steps`."""
    discount: float = 0.99
    """The discount factor: the weight of a reward that comes one step later."""
    decay: float = 0.95
    """Lambda of the generalized advantage estimate; 1 gives the n-step return of the paper."""
    entropy_weight: float = 0.001
    """The weight of the policy's entropy in the loss. A large weight keeps the policy exploring."""
    value_weight: float = 1.0
    """The weight of the value function's error in the loss."""
    max_gradient_norm: float = 0.3
    """The largest norm of a gradient. Larger gradients are scaled down to this norm."""
    normalize_obs: bool = True
    """Normalize floating-point observations by their running mean and variance."""
    hidden: tuple[int, ...] = (64, 64)
    """The sizes of the dense layers that the policy and the value share."""
    memory: int = 0
    """Units of the recurrent layer that policy and value share; 0 for no recurrence."""
    activation: str = "tanh"
    """The activation function of the layers in `hidden`."""
    encoder_network: Network | None = None
    """A network that replaces the layers in `hidden`. Maps observations to `[..., features]`."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "env_steps", "num_envs", "length", "hidden")

    def init(self, key: Array, num_envs: int) -> State:
        return self._agent.init(
            jax.random.split(key, 3), self.env, num_envs, normalize_obs=self.normalize_obs,
            pace=num_envs * self.length / self.env_steps,
        )  # fmt: skip

    def step(self, state: State) -> tuple[State, dict[str, Array]]:
        actor, learner = state
        act = partial(self.act, learner.params, learner.moments)
        actor, rollout = unroll(self.env, act, actor, self.length)
        learner, metrics = self.update(learner, rollout)
        return State(actor, learner), {**rollout.episodes, **metrics}

    @fragment(role="act")
    def act(self, params: Any, moments: Any, obs: Array, memory: Any, keys: Array) -> Any:
        return self._agent.act(params, moments, obs, memory, keys)

    @fragment(role="learn")
    def update(self, learner: Learner, rollout: Rollout) -> tuple[Learner, dict[str, Array]]:
        return one_step(
            self._agent, learner, rollout, self._estimate,
            rate=self.learning_rate * (1.0 - learner.progress * self.anneal).clip(0.0),
            value_weight=self.value_weight, entropy_weight=self.entropy_weight,
        )  # fmt: skip

    def policy(self, state: State, explore: bool = False) -> Policy:
        return self._agent.policy(state.learner.params, state.learner.moments, explore)

    def _estimate(
        self, rollout: Rollout, _: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array, dict[str, Array]]:
        advantage, target = gae(
            rollout.reward, value, next_value, rollout.terminated, rollout.truncated,
            discount=self.discount, decay=self.decay,
        )  # fmt: skip
        return *lax.stop_gradient((advantage, target)), {}

    @property
    def _agent(self) -> Agent:
        return agent_for(
            self.env, "A2C", self.hidden, self.activation, self.memory, self.encoder_network,
            calm_adam(self.max_gradient_norm, calm_norm=0.07),  # why: see `impala.py`
        )  # fmt: skip
