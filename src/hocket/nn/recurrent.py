"""A recurrent core, whose state is called memory, and networks around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen
from jax import Array, lax

from hocket.nn.networks import Network
from hocket.ops.initializers import orthogonal

Memory = TypeVar("Memory")
Output = TypeVar("Output")


class GRU(linen.Module):
    """A recurrent core. One step over `[N, ...]` is `apply(params, memory, x) -> (memory, y)`.

        memory, y = scan_memory(partial(gru.apply, params), memory, x, first)

    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder":
    https://arxiv.org/abs/1406.1078
    """

    features: int

    @linen.compact
    def __call__(self, memory: Array, x: Array) -> tuple[Array, Array]:
        return linen.GRUCell(self.features, recurrent_kernel_init=orthogonal())(memory, x)

    @linen.nowrap
    def initial(self, num: int) -> Array:
        """Return the memory at the beginning of an episode: zeros."""
        return jnp.zeros((num, self.features))


@dataclass(frozen=True)
class Recurrent:
    """An encoder, a GRU, and heads that read the GRU's memory, such as a policy and a value head.

    The encoder and the heads take any leading axes at once; only the GRU goes step by step.
    Without a GRU (`core` is None) the heads read the encoder's features.
    """

    encoder: Network
    core: GRU | None
    heads: tuple[Network, ...]

    def init(self, key: Array, obs: Any) -> Any:
        """Return parameters, given one observation."""
        k_encoder, k_core, *k_heads = jax.random.split(key, 2 + len(self.heads))
        encoder = self.encoder.init(k_encoder, obs)
        features = self.encoder.apply(encoder, obs)
        core = self.core and self.core.init(k_core, self.initial, features)
        seen = features if self.core is None else self.initial
        heads = [h.init(k, seen) for h, k in zip(self.heads, k_heads, strict=True)]
        return {"encoder": encoder, "core": core, "heads": heads}

    @property
    def initial(self) -> Any:
        """The memory of one environment at the beginning of an episode; None without a core."""
        return None if self.core is None else self.core.initial(1)[0]

    def step(self, params: Any, memory: Any, obs: Any) -> tuple[list[Any], Any]:
        """Return the output of each head after one more observation, and the memory to keep."""
        memory = self.remember(params, memory, obs)
        return self.read(params, memory), None if self.core is None else memory

    def remember(self, params: Any, memory: Any, obs: Any) -> Array:
        """Return the memory after one more observation, for the heads to read."""
        features = self.encoder.apply(params["encoder"], obs)
        if self.core is None:
            return features
        step: Any = self.core.apply(params["core"], memory, features)
        return step[0]

    def replay(self, params: Any, memory: Any, obs: Any, first: Array) -> Array:
        """Return the memory after each step `[T, N, ...]`, given the memory before the first step.

        Before every step that begins an episode (`first`), the memory is set to zero.
        """
        features = self.encoder.apply(params["encoder"], obs)
        if self.core is None:
            return features
        step: Any = partial(self.core.apply, params["core"])
        return scan_memory(step, memory, features, first)[1]

    def read(self, params: Any, memory: Array) -> list[Any]:
        """Return the output of each head for a memory."""
        return [h.apply(p, memory) for h, p in zip(self.heads, params["heads"], strict=True)]


def reset_memory(memory: Memory, first: Array) -> Memory:
    """Set the memory of each environment where an episode begins (`first`) to zero."""

    def reset(m: Array) -> Array:
        begins = first.reshape(first.shape + (1,) * (m.ndim - first.ndim))
        return jnp.where(begins, jnp.zeros_like(m), m)

    return jax.tree.map(reset, memory)


def scan_memory(
    step: Callable[[Memory, Array], tuple[Memory, Output]], memory: Memory, x: Array, first: Array
) -> tuple[Memory, Output]:
    """Run a recurrent step over `[T, N, ...]`; memory is zero where an episode begins (`first`)."""

    def body(memory: Memory, at: tuple[Array, Array]) -> tuple[Memory, Output]:
        x_t, first_t = at
        return step(reset_memory(memory, first_t), x_t)

    return lax.scan(body, memory, (x, first))
