"""The parts that actor-critics share: the learner's state, the agent and a gradient step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from flax import linen
from jax import Array

from hocket.algorithms.heads import Head, head_for
from hocket.core.program.algorithm import Policy
from hocket.core.program.averaged import averaged
from hocket.envs.env import Env
from hocket.envs.host import HostEnv
from hocket.envs.unroll import Actor, Rollout, init_actor
from hocket.nn.layers import MLP
from hocket.nn.networks import Network, Separate, encoder
from hocket.nn.recurrent import GRU, Recurrent
from hocket.ops import Distribution, Moments, descend

# Legend: T steps of a rollout, N environments.

Estimate = Callable[[Rollout, Array, Array, Array], tuple[Array, Array, dict[str, Array]]]
"""A function that estimates advantages. Its arguments are a rollout, the log probability ratios of
learner to actor, the values `[T, N]`, and the values of the next observations. It returns
advantages, value targets and metrics."""


class Learner(NamedTuple):
    """The learner's part of the state: everything that learning changes."""

    params: Any
    optimizer: Any
    moments: Moments | None
    """The moments that normalize observations; None if observations stay as they are."""
    returns: Moments
    """The moments of the value targets. The network predicts values normalized by these moments."""
    progress: Array
    """The fraction of `env_steps` used so far, from 0 to 1. The learning rate falls with it."""
    pace: Array
    """The fraction of `env_steps` that one iteration uses."""
    key: Array
    """The key for draws that all environments share, such as the order of minibatches."""


class State(NamedTuple):
    actor: Actor
    learner: Learner


def seen(moments: Moments | None, obs: Array) -> Array:
    """Return an observation as the networks see it: normalized, if there are moments."""
    return obs if moments is None else moments.normalize(obs)


@dataclass(frozen=True)
class Agent:
    """A policy and a value function, and the optimizer of their parameters.

    In a `Recurrent` network both read the memory of one shared GRU. Without a GRU they read the
    features of one shared encoder. In a `Separate` network each has a network of its own.
    """

    network: Recurrent | Separate
    head: Head
    optimizer: optax.GradientTransformation

    def init(
        self, keys: Array, env: Env | HostEnv, num_envs: int, *, normalize_obs: bool, pace: float
    ) -> State:
        """Return the state at the beginning of training.

        The last two of `keys` are for the actor and the learner, the others for the network.
        """
        *k_network, k_actor, k_learner = keys
        actor = init_actor(env, k_actor, num_envs, memory=self.network.initial)
        obs = jax.tree.map(lambda x: x[0], actor.obs)
        params = cast(Any, self.network).init(*k_network, obs)  # `Separate` takes two keys
        # Integers, such as the bytes of an image, stay as they are: the networks scale these.
        normalize = normalize_obs and jnp.issubdtype(obs.dtype, jnp.floating)
        return State(
            actor,
            Learner(
                params=params,
                optimizer=self.optimizer.init(params),
                moments=Moments.init(obs.shape) if normalize else None,
                returns=Moments.init(()),
                progress=jnp.zeros(()),
                pace=jnp.asarray(pace, jnp.float32),
                key=k_learner,
            ),
        )

    def act(
        self, params: Any, moments: Moments | None, obs: Array, memory: Any, keys: Array
    ) -> tuple[Array, Any, dict[str, Array]]:
        """Choose an action for each environment.

        Return the actions, the next memories, and the samples with their log-probabilities.
        """
        (policy, *_), memory = self.network.step(params, memory, seen(moments, obs))
        choices = self.head.distribution(policy)
        sample = choices.sample_each(keys)
        extras = {"sample": sample, "log_prob": choices.log_prob(sample)}
        return self.head.action(sample), memory, extras

    def replay(
        self, params: Any, moments: Moments | None, rollout: Rollout
    ) -> tuple[Distribution, Array, Array]:
        """Run the network over a rollout.

        Return the action distributions `[T, N]`, and the values of `obs` and `next_obs`.
        """
        obs, next_obs = (seen(moments, x) for x in (rollout.obs, rollout.next_obs))
        memory = self.network.replay(params, rollout.memory, obs, rollout.first)
        # Take one more step from each memory, even where an episode ends and the actor resets the
        # memory: the value at which a truncated episode bootstraps depends on its past.
        next_memory = self.network.remember(params, memory, next_obs)
        return *self.read(params, memory), self.read(params, next_memory)[1]

    def read(self, params: Any, memory: Array) -> tuple[Distribution, Array]:
        """Return the action distribution and the value.

        `memory` is what the network's `remember` or `replay` returned.
        """
        policy, value = self.network.read(params, memory)
        return self.head.distribution(policy), value[..., 0]

    def policy(self, params: Any, moments: Moments | None, explore: bool) -> Policy:
        """Return the policy, which acts on one observation at a time."""

        def act(obs: Array, memory: Any, key: Array) -> tuple[Array, Any]:
            (policy, *_), memory = self.network.step(params, memory, seen(moments, obs))
            choices = self.head.distribution(policy)
            return self.head.action(choices.sample(key) if explore else choices.mode()), memory

        return Policy(act, self.network.initial)


def agent_for(
    env: Env | HostEnv,
    who: str,
    hidden: tuple[int, ...],
    activation: str,
    memory: int,
    reader: Network | None,
    optimizer: optax.GradientTransformation,
) -> Agent:
    """Return an agent whose policy and value share an encoder and a GRU with `memory` units.

    The encoder is `reader`, or by default one that suits the observations. With `memory=0` there is
    no GRU. Errors name the algorithm `who`.
    """
    head = head_for(env.action_space, who=who)
    policy = linen.Sequential([MLP((head.size,), out_scale=0.01), *head.layers])
    network = Recurrent(
        encoder=reader or encoder(env.observation_space.spec(), hidden, activation),
        core=GRU(memory) if memory else None,
        heads=(policy, MLP((1,), out_scale=1.0)),
    )
    return Agent(network, head, optimizer)


def one_step(
    agent: Agent,
    learner: Learner,
    rollout: Rollout,
    estimate: Estimate,
    *,
    rate: Array,
    value_weight: float,
    entropy_weight: float,
) -> tuple[Learner, dict[str, Array]]:
    """Take one gradient step on a rollout. Return the updated learner, and metrics."""
    loss = partial(
        policy_gradient_loss, agent, learner, rollout, estimate,
        value_weight=value_weight, entropy_weight=entropy_weight,
    )  # fmt: skip
    gradients, (returns, metrics) = jax.grad(loss, has_aux=True)(learner.params)
    direction, state = agent.optimizer.update(averaged(gradients), learner.optimizer)
    learner = learner._replace(
        params=descend(learner.params, direction, rate),
        optimizer=state,
        moments=learner.moments and learner.moments.update(rollout.obs),
        returns=returns,
        progress=learner.progress + learner.pace,
    )
    return learner, averaged(metrics)


def policy_gradient_loss(
    agent: Agent,
    learner: Learner,
    rollout: Rollout,
    estimate: Estimate,
    params: Any,
    *,
    value_weight: float,
    entropy_weight: float,
) -> tuple[Array, tuple[Moments, dict[str, Array]]]:
    """Return the loss of an actor-critic, the new moments of its value targets, and metrics."""
    choices, value, next_value = agent.replay(params, learner.moments, rollout)
    log_prob = choices.log_prob(rollout.extras["sample"])
    advantage, target, metrics = estimate(
        rollout,
        log_prob - rollout.extras["log_prob"],
        learner.returns.denormalize(value),
        learner.returns.denormalize(next_value),
    )
    returns = learner.returns.update(target)
    # Advantages are divided by the running standard deviation of the returns. Tried on CartPole:
    # with advantages of variance 1 in every batch, most runs lost what they had learned, perhaps
    # because the advantages of an agent that acts well are mostly noise.
    policy = -(log_prob * advantage / jnp.sqrt(returns.var + 1e-8)).mean()
    error = 0.5 * jnp.square(value - returns.normalize(target)).mean()
    entropy = choices.entropy().mean()
    metrics = {"policy_loss": policy, "value_loss": error, "entropy": entropy, **metrics}
    return policy + value_weight * error - entropy_weight * entropy, (returns, metrics)
