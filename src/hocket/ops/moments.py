"""Running means and variances, and the standardization of one batch."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from hocket.core.program.averaged import averaged


class Moments(NamedTuple):
    """The mean and variance of all batches so far. They are learner state, equal on all replicas.

    Every batch has the same weight, however many samples it has. Weights by the number of samples
    would differ between one program and replicas, which see only their own environments.

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
        """Return mean 0 and variance 1. Until the first `update`, `normalize` only clips."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))

    def update(self, batch: Array) -> Moments:
        """Add a batch `[..., *shape]`, averaging over its leading axes."""
        x = batch.astype(self.mean.dtype)
        axes = tuple(range(x.ndim - self.mean.ndim))
        mean = averaged(x.mean(axes))
        # The variance is around the mean over all replicas. Averaging the variances around each
        # replica's own mean would give too small a result.
        var = averaged(jnp.square(x - jnp.expand_dims(mean, axes)).mean(axes))
        updates = self.updates + 1.0
        delta, weight = mean - self.mean, 1.0 / updates
        return Moments(
            mean=self.mean + weight * delta,
            var=(1.0 - weight) * (self.var + weight * jnp.square(delta)) + weight * var,
            updates=updates,
        )

    def normalize(self, x: Array, clip: float = 10.0) -> Array:
        """Return `x` in standard deviations from the mean, clipped to [-clip, clip]."""
        axes = tuple(range(x.ndim - self.mean.ndim))
        mean, var = jnp.expand_dims(self.mean, axes), jnp.expand_dims(self.var, axes)
        return jnp.clip((x - mean) / jnp.sqrt(var + 1e-8), -clip, clip)

    def denormalize(self, x: Array) -> Array:
        """Invert `normalize`, for a value network that predicts in standard deviations."""
        return self.mean + jnp.sqrt(self.var) * x


def standardize(x: Array, epsilon: float = 1e-8) -> Array:
    """Shift and scale `x` to mean 0 and variance 1 over the batch of all replicas."""
    mean = averaged(x.mean())
    var = averaged(jnp.square(x - mean).mean())
    return (x - mean) / (jnp.sqrt(var) + epsilon)
