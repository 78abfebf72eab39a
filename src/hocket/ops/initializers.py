"""Orthogonal weights without LAPACK.

`jax.nn.initializers.orthogonal` makes the same ones, by a QR decomposition. On a CPU of few cores a
batch of those, which is what `vmap` over seeds makes of it, can wait for itself for ever (jaxlib
0.10.2: the parts of a batch wait in the threads that should do them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

PANEL = 32
"""Columns that are made orthogonal one by one; before that, all of them to those on their left."""


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """An initializer of `[..., in, out]`, as flax takes it: orthogonal columns, or else rows.

    Saxe, McClelland and Ganguli 2014, "Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks": https://arxiv.org/abs/1312.6120
    """

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32, **_: Any) -> Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        tall = (max(rows, columns), min(rows, columns))
        basis = orthonormal(jax.random.normal(key, tall, dtype))
        return scale * (basis if rows >= columns else basis.T).reshape(shape)

    return init


@jax.jit  # flax asks for the shape of every weight whenever a network is applied
def orthonormal(x: Array) -> Array:
    """The columns of `[n, m]`, n >= m, made orthonormal from left to right: Gram and Schmidt.

    Each is freed of those before it twice, which is enough: Giraud, Langou and Rozloznik 2005, "The
    loss of orthogonality in the Gram-Schmidt orthogonalization process".
    """
    made = x[:, :0]
    for start in range(0, x.shape[1], PANEL):
        panel = x[:, start : start + PANEL]
        for _ in range(2):
            panel = panel - made @ (made.T @ panel)
        made = jnp.concatenate([made, _one_by_one(panel)], axis=1)
    return made


def _one_by_one(panel: Array) -> Array:
    def column(j: Array, made: Array) -> Array:
        x = panel[:, j]
        for _ in range(2):  # `made` is zero from j on
            x = x - made @ (made.T @ x)
        return made.at[:, j].set(x / jnp.linalg.norm(x))

    return lax.fori_loop(0, panel.shape[1], column, jnp.zeros_like(panel))
