"""Running mean and variance of observations, and the standardizing of one batch."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from hocket.core.program.averaged import averaged


class Moments(NamedTuple):
    """The mean and variance of all batches so far: learner state, the same on every replica.

    Each update counts as one batch of equal weight, however many environments it came from: a
    replica sees only its own, so a count of samples would differ from the fused program's.

        moments = Moments.init(obs.shape[1:]).update(obs)
        obs = moments.normalize(obs)

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances".
    """

    mean: Array
    var: Array
    updates: Array

    @classmethod
    def init(cls, shape: tuple[int, ...]) -> Moments:
        """Moments of nothing yet, under which `normalize` only clips."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))

    def update(self, batch: Array) -> Moments:
        """Add a batch: every axis of it before those of the moments is averaged over."""
        x = batch.astype(self.mean.dtype)
        axes = tuple(range(x.ndim - self.mean.ndim))
        mean = averaged(x.mean(axes))
        var = averaged(jnp.square(x - jnp.expand_dims(mean, axes)).mean(axes))
        updates = self.updates + 1.0
        delta, weight = mean - self.mean, 1.0 / updates
        return Moments(
            mean=self.mean + weight * delta,
            var=(1.0 - weight) * (self.var + weight * jnp.square(delta)) + weight * var,
            updates=updates,
        )

    def normalize(self, x: Array, clip: float = 10.0) -> Array:
        """`x` in standard deviations from the mean, at most `clip` of them."""
        axes = tuple(range(x.ndim - self.mean.ndim))
        mean, var = jnp.expand_dims(self.mean, axes), jnp.expand_dims(self.var, axes)
        return jnp.clip((x - mean) / jnp.sqrt(var + 1e-8), -clip, clip)

    def denormalize(self, x: Array) -> Array:
        """The inverse of `normalize`, for a value network that predicts in standard deviations."""
        return self.mean + jnp.sqrt(self.var) * x


def standardize(x: Array, epsilon: float = 1e-8) -> Array:
    """`x` with mean 0 and variance 1 over the whole batch, the other replicas' part included."""
    mean = averaged(x.mean())
    var = averaged(jnp.square(x - mean).mean())
    return (x - mean) / (jnp.sqrt(var) + epsilon)
