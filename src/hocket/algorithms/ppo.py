"""PPO: proximal policy optimization, for discrete and continuous actions.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms": https://arxiv.org/abs/1707.06347
The details are those of Huang et al. 2022, "The 37 Implementation Details of PPO".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from jax import Array

from hocket.algorithms.actor_critic import Learner, State, after, init_learner, seen
from hocket.algorithms.heads import Head, head_for
from hocket.algorithms.proximal import LossInputs, improve, ppo_loss, staying_near
from hocket.core.program.algorithm import Policy
from hocket.core.program.fragment import fragment
from hocket.envs import Env, HostEnv, Rollout, init_actor, unroll
from hocket.errors import check_at_least
from hocket.nn.networks import Network, network
from hocket.ops import Distribution, Moments, clipped_adam, gae, shuffle_time

# Legend: T steps of a rollout, N environments, M minibatches.


class Params(NamedTuple):
    policy: Any
    value: Any


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimization.

    hocket.run(PPO(env=make("CartPole-v1")))
    """

    env: Env | HostEnv
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 500_000
    """Environment steps in all; the learning rate falls to zero over them."""
    num_envs: int = 64
    """Environments, where the run does not say."""
    # Tried on CartPole, with minibatches of one size: 64 steps, and 5 of 20 runs lost what they had
    # learned; none with 128. Perhaps since episodes of 500 steps run abreast: a short batch shows
    # one part of them.
    length: int = 128
    """Steps of each environment in an iteration."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 8
    """Minibatches in a pass; must divide `length`."""
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
    hidden: tuple[int, ...] = (64, 64)
    """Layers of the policy's and the value's network."""
    activation: str = "tanh"
    """Between those layers."""
    policy_network: Network | None = None
    """Instead of the default one: from observations to the action distribution's parameters."""
    value_network: Network | None = None
    """Instead of the default one: from observations to `[..., 1]`."""

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "env_steps", "num_envs", "length", "epochs", "minibatches", "hidden"
        )

    def init(self, key: Array, num_envs: int) -> State:
        k_policy, k_value, k_actor, k_learner = jax.random.split(key, 4)
        actor = init_actor(self.env, k_actor, num_envs)
        obs = jax.tree.map(lambda x: x[0], actor.obs)
        params = Params(self._policy.init(k_policy, obs), self._value.init(k_value, obs))
        learner = init_learner(
            params, obs, k_learner, optimizer=self._optimizer, normalize_obs=self.normalize_obs,
            pace=num_envs * self.length / self.env_steps,
        )  # fmt: skip
        return State(actor, learner)

    def step(self, state: State) -> tuple[State, dict[str, Array]]:
        actor, learner = state
        act = partial(self.act, learner.params.policy, learner.moments)
        actor, rollout = unroll(self.env, act, actor, self.length)
        learner, metrics = self.update(learner, rollout)
        return State(actor, learner), {**rollout.episodes, **metrics}

    @fragment(role="act")
    def act(self, params: Any, moments: Any, obs: Array, memory: None, keys: Array) -> Any:
        choices = self._head.distribution(self._policy.apply(params, seen(moments, obs)))
        sample = choices.sample_each(keys)
        extras = {"sample": sample, "log_prob": choices.log_prob(sample)}
        return self._head.action(sample), memory, extras

    @fragment(role="learn")
    def update(self, learner: Learner, rollout: Rollout) -> tuple[Learner, dict[str, Array]]:
        batch, returns = self._batch(learner, rollout)
        moments = after(learner.moments, rollout.obs)
        learner, metrics = improve(
            learner, self._loss, lambda key: (shuffle_time(key, batch, self.minibatches),),
            optimizer=self._optimizer, epochs=self.epochs,
            rate=self.learning_rate * (1.0 - learner.progress * self.anneal).clip(0.0),
        )  # fmt: skip
        # Only now: the rollout was acted, and is learned from, with the moments before it.
        return learner._replace(moments=moments, returns=returns), metrics

    def policy(self, state: State, explore: bool = False) -> Policy:
        params, moments = state.learner.params.policy, state.learner.moments

        def act(obs: Array, memory: None, key: Array) -> tuple[Array, None]:
            choices = self._head.distribution(self._policy.apply(params, seen(moments, obs)))
            return self._head.action(choices.sample(key) if explore else choices.mode()), memory

        return Policy(act)

    def _batch(self, learner: Learner, rollout: Rollout) -> tuple[LossInputs, Moments]:
        """Advantages and targets. Values are those of the rollout's own parameters."""
        obs, next_obs = (seen(learner.moments, x) for x in (rollout.obs, rollout.next_obs))
        value, next_value = (
            learner.returns.denormalize(self._value_of(learner.params, x)) for x in (obs, next_obs)
        )
        advantage, target = gae(
            rollout.reward, value, next_value, rollout.terminated, rollout.truncated,
            discount=self.discount, decay=self.decay,
        )  # fmt: skip
        returns = learner.returns.update(target)
        sample, target = rollout.extras["sample"], returns.normalize(target)
        before = self._choices(learner.params, obs) if self.decoupled else None
        log_prob, weight = staying_near(before, sample, rollout.extras["log_prob"])
        return LossInputs(obs, sample, log_prob, advantage, target, weight), returns

    def _loss(self, params: Params, batch: LossInputs) -> tuple[Array, dict[str, Array]]:
        return ppo_loss(
            self._choices(params, batch.obs), self._value_of(params, batch.obs), batch,
            clip=self.clip, value_weight=self.value_weight, entropy_weight=self.entropy_weight,
        )  # fmt: skip

    def _choices(self, params: Params, obs: Array) -> Distribution:
        return self._head.distribution(self._policy.apply(params.policy, obs))

    def _value_of(self, params: Params, obs: Array) -> Array:
        return self._value.apply(params.value, obs)[..., 0]

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return clipped_adam(self.max_gradient_norm)

    @property
    def _head(self) -> Head:
        return head_for(self.env.action_space, who="PPO")

    @property
    def _policy(self) -> Network:
        return self.policy_network or network(
            self.env.observation_space.spec(), self._head.size, self.hidden, self.activation,
            out_scale=0.01, after=self._head.layers,
        )  # fmt: skip

    @property
    def _value(self) -> Network:
        return self.value_network or network(
            self.env.observation_space.spec(), 1, self.hidden, self.activation, out_scale=1.0
        )
