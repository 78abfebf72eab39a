"""Recurrent PPO: proximal policy optimization with a memory, for what one observation hides.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms": https://arxiv.org/abs/1707.06347
The learner runs the network over whole rollouts again, from the memory each of them began with:
Hausknecht and Stone 2015, "Deep Recurrent Q-Learning": https://arxiv.org/abs/1507.06527
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import optax
from jax import Array

from hocket.algorithms.actor_critic import Agent, Learner, State, after, agent_for, seen
from hocket.algorithms.proximal import LossInputs, improve, ppo_loss, staying_near
from hocket.core.program.algorithm import Policy
from hocket.core.program.fragment import fragment
from hocket.envs.env import Env
from hocket.envs.host import HostEnv
from hocket.envs.unroll import Rollout, unroll
from hocket.errors import check_at_least
from hocket.nn.networks import Network
from hocket.ops import Moments, clipped_adam, gae, shuffle_envs

# Legend: T steps of a rollout, N environments, M minibatches.


@dataclass(frozen=True)
class RecurrentPPO:
    """Proximal policy optimization with a gated recurrent unit, which policy and value share.

    hocket.run(RecurrentPPO(env=Masked(make("CartPole-v1"), keep=(0, 2))))
    """

    env: Env | HostEnv
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 1_000_000
    """Environment steps in all; the learning rate falls to zero over them."""
    num_envs: int = 64
    """Environments, where the run does not say."""
    length: int = 128
    """Steps of each environment in an iteration; the memory learns from no longer a past."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Minibatches in a pass; must divide the environments of a replica."""
    learning_rate: float = 2e-3
    """Adam's, at the beginning."""
    anneal: bool = True
    """Whether the learning rate falls to zero over `env_steps`."""
    discount: float = 0.99
    """The weight of a reward that comes a step later."""
    decay: float = 0.95
    """Lambda of the generalized advantage estimate."""
    clip: float = 0.2
    """How far a probability ratio may move before its gradient is cut."""
    decoupled: bool = False
    """Whether that is from the policy before the update, also where an older one chose the samples:
    for strategies with a lag."""
    entropy_weight: float = 0.01
    """The weight of the policy's entropy in the loss: more keeps it exploring."""
    value_weight: float = 0.5
    """The weight of the value's error in the loss."""
    max_gradient_norm: float = 0.5
    """Larger gradients are scaled down to this norm."""
    normalize_obs: bool = True
    """Whether observations of floating point are scaled by their running mean and variance."""
    hidden: tuple[int, ...] = (64,)
    """Layers between the observation and the memory."""
    memory: int = 64
    """Features of the memory."""
    activation: str = "tanh"
    """The activation of the layers before the memory."""
    encoder_network: Network | None = None
    """Instead of the default one: from observations to the memory's input, `[..., features]`."""

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "env_steps", "num_envs", "length", "epochs", "minibatches", "hidden", "memory"
        )

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
    def act(self, params: Any, moments: Any, obs: Array, memory: Array, keys: Array) -> Any:
        return self._agent.act(params, moments, obs, memory, keys)

    @fragment(role="learn")
    def update(self, learner: Learner, rollout: Rollout) -> tuple[Learner, dict[str, Array]]:
        batch, returns = self._batch(learner, rollout)
        moments = after(learner.moments, rollout.obs)

        def deal(key: Array) -> tuple[LossInputs, Array, Array]:
            batches, first = shuffle_envs(key, (batch, rollout.first), self.minibatches)
            return batches, first, shuffle_envs(key, rollout.memory, self.minibatches, axis=0)

        learner, metrics = improve(
            learner, self._loss, deal, optimizer=self._optimizer, epochs=self.epochs,
            rate=self.learning_rate * (1.0 - learner.progress * self.anneal).clip(0.0),
        )  # fmt: skip
        return learner._replace(moments=moments, returns=returns), metrics

    def policy(self, state: State, explore: bool = False) -> Policy:
        return self._agent.policy(state.learner, explore)

    def _batch(self, learner: Learner, rollout: Rollout) -> tuple[LossInputs, Moments]:
        """Advantages and targets. Values are those of the rollout's own parameters."""
        choices, *values = self._agent.replay(learner.params, learner.moments, rollout)
        value, next_value = (learner.returns.denormalize(v) for v in values)
        advantage, target = gae(
            rollout.reward, value, next_value, rollout.terminated, rollout.truncated,
            discount=self.discount, decay=self.decay,
        )  # fmt: skip
        returns = learner.returns.update(target)
        sample, target = rollout.extras["sample"], returns.normalize(target)
        before = choices if self.decoupled else None
        log_prob, weight = staying_near(before, sample, rollout.extras["log_prob"])
        obs = seen(learner.moments, rollout.obs)
        return LossInputs(obs, sample, log_prob, advantage, target, weight), returns

    def _loss(self, params: Any, batch: LossInputs, first: Array, memory: Array) -> Any:
        memory = self._agent.network.replay(params, memory, batch.obs, first)
        return ppo_loss(
            *self._agent.read(params, memory), batch,
            clip=self.clip, value_weight=self.value_weight, entropy_weight=self.entropy_weight,
        )  # fmt: skip

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return clipped_adam(self.max_gradient_norm)

    @property
    def _agent(self) -> Agent:
        return agent_for(
            self.env, "RecurrentPPO", self.hidden, self.activation, self.memory,
            self.encoder_network,
        )  # fmt: skip
