"""A2C: the advantage actor-critic, one gradient step for each rollout.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", of which this is the
synchronous form: https://arxiv.org/abs/1602.01783
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import optax
from jax import Array, lax

from hocket.algorithms.actor_critic import (
    Agent,
    Learner,
    State,
    agent_for,
    one_step,
    policy_gradient_loss,
)
from hocket.core.program.algorithm import Policy
from hocket.core.program.fragment import fragment
from hocket.envs import Env, HostEnv, Rollout, unroll
from hocket.errors import check_at_least
from hocket.nn.networks import Network
from hocket.ops import calm_adam, gae


@dataclass(frozen=True)
class A2C:
    """The advantage actor-critic, with a memory or without.

    hocket.run(A2C(env=make("CartPole-v1")))
    """

    env: Env | HostEnv
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 1_000_000
    """Environment steps in all; the learning rate falls to zero over them."""
    num_envs: int = 64
    """Environments, where the run does not say."""
    length: int = 16
    """Steps of each environment in an iteration; a memory learns from no longer a past."""
    learning_rate: float = 2e-3
    """Adam's, at the beginning."""
    anneal: bool = True
    """Whether the learning rate falls to zero over `env_steps`."""
    discount: float = 0.99
    """The weight of a reward that comes a step later."""
    decay: float = 0.95
    """Lambda of the generalized advantage estimate; 1 is the n-step return of the paper."""
    entropy_weight: float = 0.001
    """The weight of the policy's entropy in the loss: more keeps it exploring."""
    value_weight: float = 1.0
    """The weight of the value's error in the loss."""
    max_gradient_norm: float = 0.3
    """Larger gradients are scaled down to this norm."""
    normalize_obs: bool = True
    """Whether observations of floating point are scaled by their running mean and variance."""
    hidden: tuple[int, ...] = (64, 64)
    """Layers between the observation and the memory, or the policy and the value."""
    memory: int = 0
    """Features of the memory; 0 for none."""
    activation: str = "tanh"
    """The activation of those layers."""
    encoder_network: Network | None = None
    """Instead of the default one: from observations to `[..., features]`."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "env_steps", "num_envs", "length", "hidden")

    def init(self, key: Array, num_envs: int) -> State:
        return self._agent.init(
            key, self.env, num_envs, optimizer=self._optimizer, normalize_obs=self.normalize_obs,
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
            learner, self._loss, rollout, optimizer=self._optimizer,
            rate=self.learning_rate * (1.0 - learner.progress * self.anneal).clip(0.0),
        )  # fmt: skip

    def policy(self, state: State, explore: bool = False) -> Policy:
        return self._agent.policy(state.learner, explore)

    def _loss(self, params: Any, learner: Learner, rollout: Rollout) -> tuple[Array, Any]:
        choices, value, next_value = self._agent.replay(params, learner.moments, rollout)
        value_now, value_then = (learner.returns.denormalize(v) for v in (value, next_value))
        advantage, target = lax.stop_gradient(gae(
            rollout.reward, value_now, value_then, rollout.terminated, rollout.truncated,
            discount=self.discount, decay=self.decay,
        ))  # fmt: skip
        returns = learner.returns.update(target)
        log_prob = choices.log_prob(rollout.extras["sample"])
        loss, metrics = policy_gradient_loss(
            choices, log_prob, value, advantage, target, returns,
            value_weight=self.value_weight, entropy_weight=self.entropy_weight,
        )  # fmt: skip
        return loss, (returns, metrics)

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        # As in `IMPALA`.
        return calm_adam(self.max_gradient_norm, calm_norm=0.07)

    @property
    def _agent(self) -> Agent:
        return agent_for(
            self.env, "A2C", self.hidden, self.activation, self.memory, self.encoder_network
        )
