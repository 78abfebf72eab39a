"""The parts that PPO and its recurrent form share: the inputs of the loss, the loss, the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from hocket.algorithms.actor_critic import Learner
from hocket.core.program.averaged import averaged
from hocket.ops import Distribution, clipped_surrogate, descend, standardize


class LossInputs(NamedTuple):
    """The inputs of the loss, `[T, N, ...]` or a minibatch `[T / M, N, ...]` of them."""

    obs: Array
    sample: Array
    log_prob: Array
    """The samples' log probabilities by the policy that the next one stays near to."""
    advantage: Array
    target: Array
    weight: Array | None = None
    """How much likelier they were for that policy than for the one that chose them; None: as."""


def improve(
    learner: Learner,
    loss: Callable[..., tuple[Array, dict[str, Array]]],
    deal: Callable[[Array], tuple[Any, ...]],
    *,
    optimizer: optax.GradientTransformation,
    epochs: int,
    rate: Array,
) -> tuple[Learner, dict[str, Array]]:
    """Some passes over a batch: `deal(key)` gives it in shuffled minibatches `[M, ...]`.

    `loss(params, *minibatch)` gives the loss and metrics; the learner comes back one iteration on.
    """

    def one_minibatch(carry: tuple[Any, Any], minibatch: tuple[Any, ...]) -> tuple[Any, Any]:
        params, state = carry
        gradients, metrics = jax.grad(loss, has_aux=True)(params, *minibatch)
        direction, state = optimizer.update(averaged(gradients), state)
        return (descend(params, direction, rate), state), metrics

    def one_epoch(carry: tuple[Any, Any], key: Array) -> tuple[Any, Any]:
        return lax.scan(one_minibatch, carry, deal(key))

    key, k_epochs = jax.random.split(learner.key)
    (params, state), metrics = lax.scan(
        one_epoch, (learner.params, learner.optimizer), jax.random.split(k_epochs, epochs)
    )
    progress = learner.progress + learner.pace
    learner = learner._replace(params=params, optimizer=state, progress=progress, key=key)
    return learner, averaged(jax.tree.map(jnp.mean, metrics))


def staying_near(
    before: Distribution | None, sample: Array, log_prob: Array
) -> tuple[Array, Array | None]:
    """`log_prob` and `weight` of a batch, whose samples had this `log_prob` when they were chosen.

    The policy to stay near to is the one that chose them, or the one `before` the update: another
    where samples are late. Hilton et al. 2022, "Batch size-invariance for policy optimization":
    https://arxiv.org/abs/2110.00641
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
    """The loss of a batch, from what the networks now give for it, and metrics."""
    log_prob = choices.log_prob(batch.sample)
    advantage = standardize(batch.advantage)
    if batch.weight is not None:
        advantage = batch.weight * advantage
    policy = clipped_surrogate(log_prob, batch.log_prob, advantage, clip=clip).mean()
    error = 0.5 * jnp.square(value - batch.target).mean()
    entropy = choices.entropy().mean()
    log_ratio = log_prob - batch.log_prob
    metrics = {
        "policy_loss": policy,
        "value_loss": error,
        "entropy": entropy,
        "kl": (jnp.expm1(log_ratio) - log_ratio).mean(),
    }
    return policy + value_weight * error - entropy_weight * entropy, metrics
