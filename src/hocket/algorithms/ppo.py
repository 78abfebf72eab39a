"""PPO: proximal policy optimization, with or without a recurrent layer.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms": https://arxiv.org/abs/1707.06347
The details follow Huang et al. 2022, "The 37 Implementation Details of PPO". A recurrent learner
replays whole rollouts, as in Hausknecht and Stone 2015: https://arxiv.org/abs/1507.06527
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hocket.algorithms.actor_critic import Agent, Learner, State, agent_for, seen
from hocket.algorithms.heads import head_for
from hocket.core.program.algorithm import Policy
from hocket.core.program.averaged import averaged
from hocket.core.program.fragment import fragment
from hocket.envs import Env, HostEnv, Rollout, unroll
from hocket.errors import check_at_least
from hocket.nn.networks import Network, Separate, network
from hocket.ops import Distribution, Moments, clipped_adam, clipped_surrogate, descend, gae
from hocket.ops.moments import standardize
from hocket.ops.shuffles import shuffle_envs, shuffle_time

# Legend: T steps of a rollout, N environments, M minibatches.


class LossInputs(NamedTuple):
    """The inputs of the loss: a batch `[T, N, ...]`, or a minibatch of it."""

    obs: Array
    sample: Array
    log_prob: Array
    """The samples' log-probabilities under the policy that the new one must stay near."""
    advantage: Array
    target: Array
    weight: Array | None = None
    """The importance weight of each sample: its probability under the policy of `log_prob`, divided
    by its probability under the policy that acted. None if the two policies are the same."""


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimization: `hocket.run(PPO(env=make("CartPole-v1")))`."""

    env: Env | HostEnv
    """The environment: NAME, NAME:option=value,... or module:Env (see `hocket envs`)."""
    env_steps: int = 500_000
    """The total number of environment steps to train for."""
    num_envs: int = 64
    """The number of environments. `hocket.run` and a search of slices can override it."""
    # Tried on CartPole, with equal minibatches: 5 of 20 runs with 64 steps lost what they had
    # learned, and none with 128 steps. Perhaps because episodes run in parallel, so that a short
    # batch shows only one part of them.
    length: int = 128
    """Steps of each environment in an iteration. Gradients through time go no further back."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 8
    """Minibatches in each pass. The number must divide `length`. With `memory`, it must divide the
    number of environments of each replica instead."""
    learning_rate: float = 2e-3
    """The learning rate of Adam at the beginning of the run."""
    anneal: bool = True
    """Let the learning rate fall linearly, to zero after `env_steps`."""
    discount: float = 0.99
    """The discount factor: the weight of a reward that comes one step later."""
    decay: float = 0.95
    """Lambda of the generalized advantage estimate."""
    clip: float = 0.2
    """How far a probability ratio may move away from 1 before its gradient becomes zero."""
    decoupled: bool = False
    """Clip against the policy just before the update, even if an older one chose the samples."""
    entropy_weight: float = 0.01
    """The weight of the policy's entropy in the loss. A large weight keeps the policy exploring."""
    value_weight: float = 0.5
    """The weight of the value function's error in the loss."""
    max_gradient_norm: float = 0.5
    """The largest norm of a gradient. Larger gradients are scaled down to this norm."""
    normalize_obs: bool = True
    """Normalize floating-point observations by their running mean and variance."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers in each of the two networks, or with `memory` in the shared one."""
    memory: int = 0
    """Units of the recurrent layer that policy and value share; 0 for no recurrence."""
    activation: str = "tanh"
    """The activation function of the layers in `hidden`."""
    policy_network: Network | None = None
    """A network that maps observations to action distribution parameters. Only for `memory=0`."""
    value_network: Network | None = None
    """A network that maps observations to values `[..., 1]`. Only for `memory=0`."""
    encoder_network: Network | None = None
    """A network before the recurrent layer, instead of `hidden`. Maps observations to features."""

    def __post_init__(self) -> None:
        check_at_least(
            self, 1, "env_steps", "num_envs", "length", "epochs", "minibatches", "hidden"
        )
        check_at_least(self, 0, "memory")
        for name in ("policy_network", "value_network") if self.memory else ("encoder_network",):
            if vars(self)[name] is not None:
                raise ValueError(
                    f"`{name}` of {type(self).__name__} is not used with memory={self.memory}: set "
                    f"`policy_network` and `value_network` if `memory` is 0, and `encoder_network` "
                    f"if it is not."
                )

    def init(self, key: Array, num_envs: int) -> State:
        return self._agent.init(
            jax.random.split(key, 3 if self.memory else 4), self.env, num_envs,
            normalize_obs=self.normalize_obs, pace=num_envs * self.length / self.env_steps,
        )  # fmt: skip

    def step(self, state: State) -> tuple[State, dict[str, Array]]:
        actor, learner = state
        # If policy and value have separate networks, actors need only the policy's parameters.
        acting = learner.params if self.memory else learner.params.policy
        act = partial(self.act, acting, learner.moments)
        actor, rollout = unroll(self.env, act, actor, self.length)
        learner, metrics = self.update(learner, rollout)
        return State(actor, learner), {**rollout.episodes, **metrics}

    @fragment(role="act")
    def act(self, params: Any, moments: Any, obs: Array, memory: Any, keys: Array) -> Any:
        return self._agent.act(params, moments, obs, memory, keys)

    @fragment(role="learn")
    def update(self, learner: Learner, rollout: Rollout) -> tuple[Learner, dict[str, Array]]:
        batch, returns = self._batch(learner, rollout)
        # The new moments count from the next iteration on: the actors made this rollout with the
        # old moments, so the update must use these too.
        moments = learner.moments and learner.moments.update(rollout.obs)
        rate = self.learning_rate * (1.0 - learner.progress * self.anneal).clip(0.0)

        def one_minibatch(carry: tuple[Any, Any], minibatch: tuple[Any, ...]) -> tuple[Any, Any]:
            params, state = carry
            gradients, metrics = jax.grad(self._loss, has_aux=True)(params, *minibatch)
            direction, state = self._agent.optimizer.update(averaged(gradients), state)
            return (descend(params, direction, rate), state), metrics

        def one_epoch(carry: tuple[Any, Any], key: Array) -> tuple[Any, Any]:
            return lax.scan(one_minibatch, carry, self._minibatches(key, batch, rollout))

        key, k_epochs = jax.random.split(learner.key)
        (params, state), metrics = lax.scan(
            one_epoch, (learner.params, learner.optimizer), jax.random.split(k_epochs, self.epochs)
        )
        progress, pace = learner.progress + learner.pace, learner.pace
        learner = Learner(params, state, moments, returns, progress, pace, key)
        return learner, averaged(jax.tree.map(jnp.mean, metrics))

    def policy(self, state: State, explore: bool = False) -> Policy:
        params = state.learner.params if self.memory else state.learner.params.policy
        return self._agent.policy(params, state.learner.moments, explore)

    def _batch(self, learner: Learner, rollout: Rollout) -> tuple[LossInputs, Moments]:
        """Return the inputs of the loss, with values predicted before the update."""
        choices, *values = self._agent.replay(learner.params, learner.moments, rollout)
        value, next_value = (learner.returns.denormalize(v) for v in values)
        advantage, target = gae(
            rollout.reward, value, next_value, rollout.terminated, rollout.truncated,
            discount=self.discount, decay=self.decay,
        )  # fmt: skip
        returns = learner.returns.update(target)
        sample, acted = rollout.extras["sample"], rollout.extras["log_prob"]
        log_prob, weight = staying_near(choices if self.decoupled else None, sample, acted)
        obs, target = seen(learner.moments, rollout.obs), returns.normalize(target)
        return LossInputs(obs, sample, log_prob, advantage, target, weight), returns

    def _minibatches(self, key: Array, batch: LossInputs, rollout: Rollout) -> tuple[Any, ...]:
        """Return the arguments of `_loss`, shuffled into minibatches `[M, ...]`."""
        if not self.memory:
            return (shuffle_time(key, batch, self.minibatches),)
        batches, first = shuffle_envs(key, (batch, rollout.first), self.minibatches)
        return batches, first, shuffle_envs(key, rollout.memory, self.minibatches, axis=0)

    def _loss(self, params: Any, batch: LossInputs, first: Any = None, memory: Any = None) -> Any:
        memory = self._agent.network.replay(params, memory, batch.obs, first)
        return ppo_loss(
            *self._agent.read(params, memory), batch,
            clip=self.clip, value_weight=self.value_weight, entropy_weight=self.entropy_weight,
        )  # fmt: skip

    @property
    def _agent(self) -> Agent:
        optimizer, who = clipped_adam(self.max_gradient_norm), type(self).__name__
        if self.memory:
            return agent_for(
                self.env, who, self.hidden, self.activation, self.memory, self.encoder_network,
                optimizer,
            )  # fmt: skip
        head, obs = head_for(self.env.action_space, who), self.env.observation_space.spec()
        default = partial(network, obs, hidden=self.hidden, activation=self.activation)
        policy = self.policy_network or default(head.size, out_scale=0.01, after=head.layers)
        return Agent(Separate(policy, self.value_network or default(1)), head, optimizer)


@dataclass(frozen=True)
class RecurrentPPO(PPO):
    """PPO with a recurrent layer: the same algorithm, with defaults that suit recurrence."""

    env_steps: int = 1_000_000
    minibatches: int = 4
    hidden: tuple[int, ...] = (64,)
    memory: int = 64


def staying_near(
    before: Distribution | None, sample: Array, log_prob: Array
) -> tuple[Array, Array | None]:
    """Return `log_prob` and `weight` of `LossInputs`, which keep the new policy near an old one.

    The old one is the policy just before the update, with the action distributions `before`. If
    `before` is None, it is the policy that chose the samples, with log-probabilities `log_prob`.
    Hilton et al. 2022: https://arxiv.org/abs/2110.00641
    """
    if before is None:
        return log_prob, None
    now = before.log_prob(sample)
    return now, jnp.exp(now - log_prob)


def ppo_loss(
    choices: Distribution,
    value: Array,
    batch: LossInputs,
    *,
    clip: float,
    value_weight: float,
    entropy_weight: float,
) -> tuple[Array, dict[str, Array]]:
    """Return the loss of a batch, and metrics; `choices` and `value` are the networks' outputs."""
    log_prob = choices.log_prob(batch.sample)
    advantage = standardize(batch.advantage)
    if batch.weight is not None:
        advantage = batch.weight * advantage
    policy = clipped_surrogate(log_prob, batch.log_prob, advantage, clip=clip).mean()
    error = 0.5 * jnp.square(value - batch.target).mean()
    entropy = choices.entropy().mean()
    log_ratio = log_prob - batch.log_prob
    kl = (jnp.expm1(log_ratio) - log_ratio).mean()
    metrics = {"policy_loss": policy, "value_loss": error, "entropy": entropy, "kl": kl}
    return policy + value_weight * error - entropy_weight * entropy, metrics
