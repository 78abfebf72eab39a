"""Orthogonal initial weights, computed without LAPACK.

`jax.nn.initializers.orthogonal` gives the same weights by a QR decomposition. Under a `vmap` over
seeds that becomes a batch, which can deadlock on a CPU with few cores: the parts of the batch wait
in the very threads that should compute them (jaxlib 0.10.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

PANEL = 32
"""The number of columns of a panel. Matrix products first make a panel orthogonal to all columns on
its left. Then its columns are made orthogonal to each other, one by one."""


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """Return an initializer for flax of weights `[..., in, out]` with orthogonal columns.

    If there are more columns than rows, the rows are orthogonal instead.

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
    """Make the columns of `[n, m]`, n >= m, orthonormal from left to right, by Gram-Schmidt.

    Each column's components along earlier columns are removed twice, because the first time leaves
    rounding errors. Twice is enough: Giraud, Langou and Rozloznik 2005, "The loss of orthogonality
    in the Gram-Schmidt orthogonalization process".
    """
    made = x[:, :0]
    for start in range(0, x.shape[1], PANEL):
        panel = x[:, start : start + PANEL]
        for _ in range(2):
            panel = panel - made @ (made.T @ panel)
        made = jnp.concatenate([made, _one_by_one(panel)], axis=1)
    return made


def _one_by_one(panel: Array) -> Array:
    """Make the columns of a panel orthonormal, one after another."""

    def column(j: Array, made: Array) -> Array:
        x = panel[:, j]
        for _ in range(2):  # columns of `made` from j on are zero, so they remove nothing
            x = x - made @ (made.T @ x)
        return made.at[:, j].set(x / jnp.linalg.norm(x))

    return lax.fori_loop(0, panel.shape[1], column, jnp.zeros_like(panel))
