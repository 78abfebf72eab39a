"""Distributions over actions, as pytrees with any leading axes. The last axis is the action's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Distribution(ABC):
    """The distribution over actions that a policy gives for an observation."""

    @abstractmethod
    def sample(self, key: Array) -> Array:
        """Draw a sample for all leading axes at once, from one key."""

    @abstractmethod
    def log_prob(self, x: Array) -> Array: ...

    @abstractmethod
    def entropy(self) -> Array: ...

    @abstractmethod
    def mode(self) -> Array: ...

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        x = self.sample(key)
        return x, self.log_prob(x)

    def sample_each(self, keys: Array) -> Array:
        """Draw a sample for each environment (the first axis), from a key of its own."""
        # A parameter of lower rank, such as one log_std for all states, has no axis to map over.
        rank = max(x.ndim for x in jax.tree.leaves(self))
        axes = jax.tree.map(lambda x: 0 if x.ndim == rank else None, self)
        return jax.vmap(type(self).sample, in_axes=(axes, 0))(self, keys)


@final
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical(Distribution):
    """A choice of one of A actions, with unnormalized log-probabilities `[..., A]`."""

    logits: Array

    def sample(self, key: Array) -> Array:
        return jax.random.categorical(key, self.logits)

    def log_prob(self, x: Array) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        # Not `take_along_axis`: its gradient is a scatter, which fuses with nothing and cost 3 % of
        # PPO's time on a GPU.
        chosen = jax.nn.one_hot(x, log_p.shape[-1], dtype=jnp.bool_)
        return jnp.sum(jnp.where(chosen, log_p, 0.0), axis=-1)

    def entropy(self) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        p = jnp.exp(log_p)
        # An action that is masked with -inf must add nothing, but 0 * -inf is nan.
        return -jnp.sum(p * jnp.where(p > 0.0, log_p, 0.0), axis=-1)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1)


@final
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiCategorical(Distribution):
    """K independent choices `[..., K]`, each with its own number of options."""

    choices: tuple[Categorical, ...]

    @classmethod
    def split(cls, logits: Array, sizes: Sequence[int]) -> Self:
        """Return the distribution for logits `[..., sum(sizes)]`, concatenated from all choices."""
        ends = np.cumsum(sizes)[:-1].tolist()
        return cls(tuple(Categorical(part) for part in jnp.split(logits, ends, axis=-1)))

    def sample(self, key: Array) -> Array:
        keys = jax.random.split(key, len(self.choices))
        return self._stack([c.sample(k) for c, k in zip(self.choices, keys, strict=True)])

    def log_prob(self, x: Array) -> Array:
        return self._stack([c.log_prob(x[..., i]) for i, c in enumerate(self.choices)]).sum(-1)

    def entropy(self) -> Array:
        return self._stack([c.entropy() for c in self.choices]).sum(-1)

    def mode(self) -> Array:
        return self._stack([c.mode() for c in self.choices])

    @staticmethod
    def _stack(parts: list[Array]) -> Array:
        return jnp.stack(parts, axis=-1)


@final
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normal(Distribution):
    """Independent normals along the last axis. `log_std` may be `[D]` for a mean `[..., D]`."""

    mean: Array
    log_std: Array

    def sample(self, key: Array) -> Array:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(self._log_std) * noise

    def log_prob(self, x: Array) -> Array:
        z = (x - self.mean) * jnp.exp(-self._log_std)
        return -jnp.sum(0.5 * jnp.square(z) + self._log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self._log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def mode(self) -> Array:
        return self.mean

    @property
    def _log_std(self) -> Array:
        return jnp.broadcast_to(self.log_std, self.mean.shape)


@final
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TanhNormal(Distribution):
    """The tanh of a `Normal`, for actions in (-1, 1).

    `log_prob` inverts the tanh, which float32 cannot do close to the bounds; `sample_and_log_prob`
    is exact, since it knows the sample before the tanh. `mode` is the tanh of the mean.

    Haarnoja et al. 2018, "Soft Actor-Critic": https://arxiv.org/abs/1801.01290, appendix C.
    """

    mean: Array
    log_std: Array

    def sample(self, key: Array) -> Array:
        return jnp.tanh(self._normal.sample(key))

    def log_prob(self, x: Array) -> Array:
        bound = 1.0 - jnp.finfo(x.dtype).eps
        return self._log_prob_of_tanh(jnp.arctanh(jnp.clip(x, -bound, bound)))

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        u = self._normal.sample(key)
        return jnp.tanh(u), self._log_prob_of_tanh(u)

    def entropy(self) -> Array:
        """Compute the entropy by quadrature over the normal, since it has no closed form."""
        points, weights = np.polynomial.hermite_e.hermegauss(32)
        std = jnp.exp(jnp.broadcast_to(self.log_std, self.mean.shape))
        slopes = jax.vmap(lambda z: _log_slope_of_tanh(self.mean + std * z))(jnp.asarray(points))
        return self._normal.entropy() + jnp.average(slopes, axis=0, weights=weights).sum(-1)

    def mode(self) -> Array:
        return jnp.tanh(self.mean)

    @property
    def _normal(self) -> Normal:
        return Normal(self.mean, self.log_std)

    def _log_prob_of_tanh(self, u: Array) -> Array:
        return self._normal.log_prob(u) - _log_slope_of_tanh(u).sum(-1)


def _log_slope_of_tanh(u: Array) -> Array:
    """Return log(1 - tanh(u) ** 2), in a form that never overflows."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
