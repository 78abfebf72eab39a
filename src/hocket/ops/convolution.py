"""A convolution with a faster gradient on a CPU.

XLA's gradient of a convolution is 20 times slower inside a loop, such as a loop over minibatches,
than outside (64 Atari frames on two cores: 2.0 s instead of 0.1 s). The gradient here is made of
matrix products, and takes 0.12 s inside a loop and outside.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# Legend: B images of H x W with C channels; a kernel of K x K, stride S = K / Q, O channels out.

NUMBERS = ("NHWC", "HWIO", "NHWC")
_PLAIN: dict[str, Any] = {
    "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "feature_group_count": 1,
    "batch_group_count": None, "precision": None, "preferred_element_type": None,
}  # fmt: skip
"""Options of a convolution, each with the only value (besides None) that the faster gradient
supports."""


def convolve(x: Array, kernel: Array, strides: Any, padding: Any, **others: Any) -> Array:
    """Compute `lax.conv_general_dilated`, with a gradient that is faster on a CPU.

    Pass this function to `flax.linen.Conv` as its argument `conv_general_dilated`. The faster
    gradient is for square kernels without padding, with a side that is a multiple of the stride.
    All other convolutions get XLA's gradient.
    """
    side, stride = kernel.shape[0], strides[0]
    square = kernel.shape[1] == side and strides[1] == stride and side % stride == 0
    usual = all(others.get(name) in (None, plain) for name, plain in _PLAIN.items())
    if not (padding == "VALID" and square and usual and x.ndim == 4):
        return lax.conv_general_dilated(x, kernel, strides, padding, **others)
    return _valid(stride, x, kernel)


def _plain(stride: int, x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=NUMBERS)


def _by_products(stride: int, x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    """Return the gradients with respect to images and kernel, by matrix products.

    Images are cut into blocks of S x S pixels, where S is the stride. At every position the kernel
    then covers Q x Q whole blocks.
    """
    side, _, channels, outs = kernel.shape
    windows, rows, columns = side // stride, g.shape[1], g.shape[2]
    size = stride * stride * channels
    places = [(i, j) for i in range(windows) for j in range(windows)]

    blocks = _to_blocks(x, rows + windows - 1, columns + windows - 1, stride)
    seen = jnp.concatenate([blocks[:, i : i + rows, j : j + columns] for i, j in places], axis=-1)
    # Transpose first, because a CPU takes twice as long to sum over leading axes as over trailing
    # ones. The barrier keeps XLA from folding the transpose into the product.
    seen = lax.optimization_barrier(jnp.moveaxis(seen, -1, 0))
    by_kernel = lax.dot_general(seen, g, (((1, 2, 3), (0, 1, 2)), ((), ())))
    split = (windows, windows, stride, stride, channels, outs)
    by_kernel = by_kernel.reshape(split).transpose(0, 2, 1, 3, 4, 5).reshape(kernel.shape)

    weights = kernel.reshape(windows, stride, windows, stride, channels, outs)
    weights = weights.transpose(0, 2, 1, 3, 4, 5).reshape(-1, size, outs)
    by_block = jnp.zeros_like(blocks)
    for (i, j), weight in zip(places, weights, strict=True):
        here = ((0, 0), (i, windows - 1 - i), (j, windows - 1 - j), (0, 0))
        by_block = by_block + jnp.pad(g @ weight.T, here)
    return _from_blocks(by_block, x, stride), by_kernel


def _to_blocks(x: Array, rows: int, columns: int, stride: int) -> Array:
    """Cut images into blocks: `[B, rows, columns, S * S * C]`."""
    size, channels = x.shape[0], x.shape[-1]
    cut = x[:, : rows * stride, : columns * stride]
    cut = cut.reshape(size, rows, stride, columns, stride, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(size, rows, columns, -1)


def _from_blocks(blocks: Array, like: Array, stride: int) -> Array:
    """Join blocks into images of the shape of `like`, with zeros where no kernel reached."""
    size, rows, columns, _ = blocks.shape
    whole = blocks.reshape(size, rows, columns, stride, stride, like.shape[-1])
    whole = whole.transpose(0, 1, 3, 2, 4, 5).reshape(size, rows * stride, columns * stride, -1)
    beyond = [(0, a - b) for a, b in zip(like.shape, whole.shape, strict=True)]
    return jnp.pad(whole, beyond)


def _by_xla(stride: int, x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    return jax.vjp(lambda x, kernel: _plain(stride, x, kernel), x, kernel)[1](g)


def _forward(stride: int, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _plain(stride, x, kernel), (x, kernel)


def _backward(stride: int, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    ours, xla = (jax.tree_util.Partial(fn, stride) for fn in (_by_products, _by_xla))
    return lax.platform_dependent(*saved, g, cpu=ours, default=xla)


_valid = jax.custom_vjp(_plain, nondiff_argnums=(0,))
_valid.defvjp(_forward, _backward)
