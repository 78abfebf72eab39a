"""Shared by algorithms with a policy and a value: the learner's state, the agent, one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from hocket.nn.networks import Network, encoder
from hocket.nn.recurrent import GRU, Recurrent
from hocket.ops import Distribution, Moments, descend

# Legend: T steps of a rollout, N environments.


class Learner(NamedTuple):
    params: Any
    optimizer: Any
    moments: Moments | None
    """The moments of observations, to normalize them; None where they are taken as they are."""
    returns: Moments
    """The moments of value targets: the network predicts them in standard deviations."""
    progress: Array
    """How much of the budget is used, 0 to 1: the learning rate falls with it."""
    pace: Array
    """How much of the budget an iteration uses."""
    key: Array
    """For what is drawn once for all environments, such as the order of minibatches."""


class State(NamedTuple):
    actor: Actor
    learner: Learner


def init_learner(
    params: Any,
    obs: Any,
    key: Array,
    *,
    optimizer: optax.GradientTransformation,
    normalize_obs: bool,
    pace: float,
) -> Learner:
    """A learner that has learned nothing, for observations like `obs`.

    They are normalized only where they are of floating point: others, such as the bytes of an
    image, have a scale of their own, which the networks know.
    """
    normalize = normalize_obs and jnp.issubdtype(obs.dtype, jnp.floating)
    return Learner(
        params=params,
        optimizer=optimizer.init(params),
        moments=Moments.init(obs.shape) if normalize else None,
        returns=Moments.init(()),
        progress=jnp.zeros(()),
        pace=jnp.asarray(pace, jnp.float32),
        key=key,
    )


def seen(moments: Moments | None, obs: Array) -> Array:
    """An observation as the networks see it."""
    return obs if moments is None else moments.normalize(obs)


def after(moments: Moments | None, obs: Array) -> Moments | None:
    """The moments, with those of a rollout's observations."""
    return moments and moments.update(obs)


@dataclass(frozen=True)
class Agent:
    """A policy and a value that read one memory, or one encoder's features if there is none."""

    network: Recurrent
    head: Head

    def init(self, key: Array, env: Env | HostEnv, num_envs: int, **options: Any) -> State:
        """The first state; the options are those of `init_learner`."""
        k_params, k_actor, k_learner = jax.random.split(key, 3)
        actor = init_actor(env, k_actor, num_envs, memory=self.network.initial)
        obs = jax.tree.map(lambda x: x[0], actor.obs)
        params = self.network.init(k_params, obs)
        return State(actor, init_learner(params, obs, k_learner, **options))

    def act(
        self, params: Any, moments: Moments | None, obs: Array, memory: Any, keys: Array
    ) -> tuple[Array, Any, dict[str, Array]]:
        """An action for each environment, the memories after it, and its sample and log_prob."""
        memory = self.network.remember(params, memory, seen(moments, obs))
        choices, _ = self.read(params, memory)
        sample = choices.sample_each(keys)
        extras = {"sample": sample, "log_prob": choices.log_prob(sample)}
        return self.head.action(sample), self._kept(memory), extras

    def replay(
        self, params: Any, moments: Moments | None, rollout: Rollout
    ) -> tuple[Distribution, Array, Array]:
        """The choices at each step `[T, N]`, its value, and the value of where it led."""
        obs, next_obs = (seen(moments, x) for x in (rollout.obs, rollout.next_obs))
        memory = self.network.replay(params, rollout.memory, obs, rollout.first)
        # One step on from each memory, also at an episode's end, where the actor forgets: what a
        # truncated episode would still have been worth depends on its past.
        next_memory = self.network.remember(params, memory, next_obs)
        return *self.read(params, memory), self.read(params, next_memory)[1]

    def read(self, params: Any, memory: Array) -> tuple[Distribution, Array]:
        """The policy's choices and the value, from a memory."""
        policy, value = self.network.read(params, memory)
        return self.head.distribution(policy), value[..., 0]

    def policy(self, learner: Learner, explore: bool) -> Policy:
        def act(obs: Array, memory: Any, key: Array) -> tuple[Array, Any]:
            memory = self.network.remember(learner.params, memory, seen(learner.moments, obs))
            choices, _ = self.read(learner.params, memory)
            sample = choices.sample(key) if explore else choices.mode()
            return self.head.action(sample), self._kept(memory)

        return Policy(act, self.network.initial)

    def _kept(self, memory: Array) -> Any:
        return None if self.network.core is None else memory


def agent_for(
    env: Env | HostEnv,
    who: str,
    hidden: tuple[int, ...],
    activation: str,
    memory: int,
    reader: Network | None = None,
) -> Agent:
    """The usual agent: an encoder (`reader`, or one for the observations), a GRU of `memory`."""
    head = head_for(env.action_space, who=who)
    policy = linen.Sequential([MLP((head.size,), out_scale=0.01), *head.layers])
    network = Recurrent(
        encoder=reader or encoder(env.observation_space.spec(), hidden, activation),
        core=GRU(memory) if memory else None,
        heads=(policy, MLP((1,), out_scale=1.0)),
    )
    return Agent(network, head)


def one_step(
    learner: Learner,
    loss: Callable[..., tuple[Array, Any]],
    rollout: Rollout,
    *,
    optimizer: optax.GradientTransformation,
    rate: Array,
) -> tuple[Learner, dict[str, Array]]:
    """One gradient step on a rollout; the learner comes back one iteration on.

    `loss(params, learner, rollout)` gives the loss, the moments of returns and metrics.
    """
    gradient = jax.grad(loss, has_aux=True)
    gradients, (returns, metrics) = gradient(learner.params, learner, rollout)
    direction, state = optimizer.update(averaged(gradients), learner.optimizer)
    learner = learner._replace(
        params=descend(learner.params, direction, rate),
        optimizer=state,
        moments=after(learner.moments, rollout.obs),
        returns=returns,
        progress=learner.progress + learner.pace,
    )
    return learner, averaged(metrics)


def policy_gradient_loss(
    choices: Distribution,
    log_prob: Array,
    value: Array,
    advantage: Array,
    target: Array,
    returns: Moments,
    *,
    value_weight: float,
    entropy_weight: float,
) -> tuple[Array, dict[str, Array]]:
    """The loss of an actor-critic, with advantages and targets as constants, and its metrics.

    Both are taken in standard deviations of the returns. Tried on CartPole: advantages with the
    variance 1 in every batch, and most runs lost what they had learned. Perhaps since they are
    mostly noise when all goes well.
    """
    policy = -(log_prob * advantage / jnp.sqrt(returns.var + 1e-8)).mean()
    error = 0.5 * jnp.square(value - returns.normalize(target)).mean()
    entropy = choices.entropy().mean()
    metrics = {"policy_loss": policy, "value_loss": error, "entropy": entropy}
    return policy + value_weight * error - entropy_weight * entropy, metrics
