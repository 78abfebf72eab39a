"""A small dense network as two GPU kernels, forward and backward. Activations stay on the chip.

XLA writes every layer's activations to memory and reads them back. A minibatch of 524,288 rows then
moves gigabytes for 20 MB of data, and a small minibatch costs six launches. Here a block of rows
passes through all layers in registers, and the backward pass computes the activations again. On an
H200 both passes take 0.23 ms instead of XLA's 0.67 ms (layers 4-64-64-2, tanh, 524,288 rows).

Products are in TF32, as XLA's are on a GPU. Inputs that a tanh has bounded are multiplied in
float16, which has the same ten bits of mantissa and twice the speed. All sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from hocket.core.program.fragment import current_role

# A block of rows passes through all layers at once. One program of a kernel takes several blocks.

Layer = tuple[Array, Array]
"""Weights `[in, out]` and bias `[out]`."""
Shapes = Sequence[tuple[int, ...]]

WIDEST = 64
"""The widest layer that fits into the registers."""
BLOCK = 64
"""The number of rows in a block."""
# Tried: 32 rows (2-20 % slower), 128 rows, 2 and 8 warps (1.3-2.3 x slower).
WARPS = 4
PROGRAMS = 528
"""The largest number of programs (parallel instances) of a kernel: four for each multiprocessor of
an H200. If there were more, the weights would only be loaded more often."""


class Spec(NamedTuple):
    """The settings of a network, apart from its arrays."""

    activation: str
    activate_last: bool
    interpret: bool
    """True to run without a GPU, for tests."""

    def activated(self, layer: int, count: int) -> bool:
        return layer < count - 1 or self.activate_last


def _tanh(x: Array, interpret: bool) -> Array:
    if interpret:
        return jnp.tanh(x)
    # Five instructions and an error of 1e-7. The library's tanh has five times as many. The single
    # instruction `tanh.approx` made the whole kernel 9 % faster, but its error is 5e-4.
    exp = _instruction("ex2.approx.ftz.f32", x * 2.8853900817779268)
    return 1.0 - 2.0 * _instruction("rcp.approx.ftz.f32", 1.0 + exp)


class Activation(NamedTuple):
    of: Callable[[Array, bool], Array]
    """The activation function, for use inside a kernel: `of(x, interpret)`."""
    slope: Callable[[Array], Array]
    """The derivative, as a function of the activation's output instead of its input."""
    bounded: bool
    """True if the output is always between -1 and 1, so that float16 can hold it."""
    plain: Callable[[Array], Array]
    """The activation function outside a kernel."""


ACTIVATIONS = {
    "tanh": Activation(_tanh, lambda y: 1.0 - y * y, True, jnp.tanh),
    "relu": Activation(
        lambda x, _: jnp.maximum(x, 0.0), lambda y: jnp.where(y > 0.0, 1.0, 0.0), False, jax.nn.relu
    ),
}


def fits(sizes: Sequence[int], activation: str, x: Array) -> bool:
    """Return True if a kernel can compute a network with layers of these sizes, input first."""
    known = activation in ACTIVATIONS and x.dtype == jnp.float32 and x.ndim >= 2
    return known and max(sizes) <= WIDEST and len(sizes) <= 5


def dense(
    layers: Sequence[Layer],
    x: Array,
    activation: str,
    *,
    activate_last: bool = False,
    interpret: bool = False,
) -> Array:
    """Return the network's output for an input `[..., in]`."""
    spec = Spec(activation, activate_last, interpret)
    y: Any = _dense(spec, tuple(layers), x.reshape(-1, x.shape[-1]))
    return y.reshape(*x.shape[:-1], y.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dense(spec: Spec, layers: tuple[Layer, ...], x: Array) -> Array:
    rows, size = x.shape[0], layers[-1][1].shape[0]
    block, blocks, warps = _cut_forward(rows)
    return pl.pallas_call(
        partial(_forward, spec, rows, [w.shape for w, _ in layers], block),
        grid=(pl.cdiv(rows, block * blocks),),
        in_specs=[_rows(block * blocks, x.shape[1]), *_whole(layers)],
        out_specs=_rows(block * blocks, size),
        out_shape=jax.ShapeDtypeStruct((rows, size), x.dtype),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=spec.interpret,
        name=f"dense_forward_{current_role()}",
    )(x, *jax.tree.leaves(layers))


def _backward(
    spec: Spec, saved: tuple[tuple[Layer, ...], Array], dy: Array
) -> tuple[tuple[Layer, ...], Array]:
    layers, x = saved
    rows, (leaves, tree) = x.shape[0], jax.tree.flatten(layers)
    blocks = _cut_backward(rows)
    programs, total = pl.cdiv(rows, BLOCK * blocks), sum(leaf.size for leaf in leaves)
    parts = pl.pallas_call(
        partial(_gradients, spec, rows, [w.shape for w, _ in layers]),
        grid=(programs,),
        in_specs=[*(_rows(BLOCK * blocks, a.shape[1]) for a in (x, dy)), *_whole(layers)],
        out_specs=pl.BlockSpec((None, total), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((programs, total), x.dtype),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=spec.interpret,
        name=f"dense_backward_{current_role()}",
    )(x, dy, *leaves)
    # Add up the parts of the gradient that the programs wrote. Atomic additions in the kernel would
    # come in any order, so that the same inputs could give other numbers.
    flat, at, gradients = parts.sum(0), 0, []
    for leaf in leaves:
        gradients.append(flat[at : at + leaf.size].reshape(leaf.shape))
        at += leaf.size
    # Training needs no gradient of the observation, so XLA drops `dx` as unused.
    (dx,) = jax.vjp(partial(_plain, spec, layers), x)[1](dy)
    return jax.tree.unflatten(tree, gradients), dx


_dense.defvjp(lambda spec, layers, x: (_dense(spec, layers, x), (layers, x)), _backward)


def _plain(spec: Spec, layers: tuple[Layer, ...], x: Array) -> Array:
    for i, (w, b) in enumerate(layers):
        x = x @ w + b[None]
        x = ACTIVATIONS[spec.activation].plain(x) if spec.activated(i, len(layers)) else x
    return x


def _forward(spec: Spec, rows: int, shapes: Shapes, block: int, x_ref: Any, *refs: Any) -> None:
    *leaf_refs, y_ref = refs
    layers = _load_layers(shapes, leaf_refs)
    blocks, start = x_ref.shape[0] // block, pl.program_id(0) * x_ref.shape[0]

    def one_block(j: Any, _: None) -> None:
        at = pl.ds(j * block, block)
        x_in, y_in = (
            _inside((block, ref.shape[1]), (rows, size), start + j * block)
            for ref, size in ((x_ref, shapes[0][0]), (y_ref, shapes[-1][1]))
        )
        y = _through(spec, layers, triton.load(x_ref.at[at, :], mask=x_in, other=0.0))[-1]
        triton.store(y_ref.at[at, :], y, mask=y_in)

    _repeat(blocks, one_block, None)


def _gradients(spec: Spec, rows: int, shapes: Shapes, x_ref: Any, dy_ref: Any, *refs: Any) -> None:
    """Write one kernel program's part of the parameters' gradient: the sum over its own rows.

    The leaves follow one another in one flat array. `_backward` adds up the parts of all programs.
    """
    *leaf_refs, out_ref = refs
    layers, activation = _load_layers(shapes, leaf_refs), ACTIVATIONS[spec.activation]
    blocks, start = x_ref.shape[0] // BLOCK, pl.program_id(0) * x_ref.shape[0]
    ones = jnp.ones((BLOCK, 16), jnp.float32)

    def one_block(j: Any, sums: list[Layer]) -> list[Layer]:
        at = pl.ds(j * BLOCK, BLOCK)
        x, g = (
            triton.load(
                ref.at[at, :],
                mask=_inside((BLOCK, ref.shape[1]), (rows, size), start + j * BLOCK),
                other=0.0,
            )
            for ref, size in ((x_ref, shapes[0][0]), (dy_ref, shapes[-1][1]))
        )
        # The gradients of a mean are too small for float16. Divided by 64 times the largest one of
        # the block they fit, with room for layers that multiply them by a million.
        unit = 64.0 * jnp.maximum(jnp.max(jnp.max(jnp.abs(g), axis=1), axis=0), 1e-30)
        g, values, sums = g / unit, [x, *_through(spec, layers, x)], list(sums)
        for i in reversed(range(len(layers))):
            half = i > 0 and activation.bounded
            if spec.activated(i, len(layers)):
                g = g * activation.slope(values[i + 1])
            dw, db = sums[i]
            dw = dw + unit * _contract(values[i], g, 0, 0, half)
            # Sum over rows by a product with ones. Tensor cores do this faster than warps could,
            # which saves 17 % of the kernel's time.
            sums[i] = dw, db + unit * _contract(ones, g, 0, 0)
            g = _contract(g, layers[i][0], 1, 1, half) if i else g
        return sums

    zeros = [(jnp.zeros(w.shape), jnp.zeros((16, *b.shape))) for w, b in layers]
    at = 0
    for (dw, db), (size_in, size_out) in zip(
        _repeat(blocks, one_block, zeros), shapes, strict=True
    ):
        for part, height in ((dw, size_in), (db, 1)):
            index = at + _iota(part.shape, 0) * size_out + _iota(part.shape, 1)
            triton.store(out_ref.at[index], part, mask=_inside(part.shape, (height, size_out)))
            at += height * size_out


def _through(spec: Spec, layers: Sequence[Layer], x: Array) -> list[Array]:
    """Return every layer's output for a block of rows."""
    activation, values = ACTIVATIONS[spec.activation], []
    for i, (w, b) in enumerate(layers):
        x = _contract(x, w, 1, 0, half=i > 0 and activation.bounded) + b[None]
        x = activation.of(x, spec.interpret) if spec.activated(i, len(layers)) else x
        values.append(x)
    return values


def _contract(a: Array, b: Array, axis_a: int, axis_b: int, half: bool = False) -> Array:
    """Multiply two matrices along these axes, in float16 if `half`, with float32 sums."""
    if half:
        a, b = a.astype(jnp.float16), b.astype(jnp.float16)
    axes = (((axis_a,), (axis_b,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _instruction(name: str, x: Array) -> Array:
    (y,) = triton.elementwise_inline_asm(
        f"{name} $0, $1;", args=[x], constraints="=f,f", pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
    )  # fmt: skip
    return y


def _repeat(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    return lax.fori_loop(0, count, body, carry) if count > 1 else body(0, carry)


def _load_layers(shapes: Shapes, refs: Sequence[Any]) -> list[Layer]:
    """Load weights and biases, padded with zeros."""
    layers = []
    for w, b, shape in zip(refs[::2], refs[1::2], shapes, strict=True):
        weights = triton.load(w, mask=_inside(w.shape, shape), other=0.0)
        layers.append((weights, triton.load(b, mask=_iota(b.shape, 0) < shape[1], other=0.0)))
    return layers


def _inside(shape: Sequence[int], real: Sequence[int], first: Any = 0) -> Array:
    """Return a mask for a padded block: True where an element lies within the real array.

    The real array has shape `real`, and the block starts at its row `first`.
    """
    return (first + _iota(shape, 0) < real[0]) & (_iota(shape, 1) < real[1])


def _iota(shape: Sequence[int], axis: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, tuple(shape), axis)


def _rows(block: int, size: int) -> pl.BlockSpec:
    return pl.BlockSpec((block, _padded(size)), lambda i: (i, 0))


def _whole(layers: Sequence[Layer]) -> list[pl.BlockSpec]:
    return [
        pl.BlockSpec(tuple(map(_padded, leaf.shape)), lambda i, rank=leaf.ndim: (0,) * rank)
        for leaf in jax.tree.leaves(layers)
    ]


def _padded(size: int) -> int:
    """Return the next power of two, or 16 if that is larger: tensor cores need at least 16."""
    return max(16, pl.next_power_of_2(size))


def _cut_forward(rows: int) -> tuple[int, int, int]:
    """Return the rows per block, the blocks per kernel program, and the warps per program."""
    # Few rows mean one of many agents under `vmap`. Tried with 2,048 agents: 2 warps cost 6 % of
    # PPO's time, and a block of 64 rows 3 %.
    if rows <= 16:
        return 16, 1, 1
    if rows <= 2 * BLOCK:  # one program, so that the weights are loaded once
        return BLOCK, pl.cdiv(rows, BLOCK), WARPS
    # Small blocks save 3 % of PPO's time, because every multiprocessor gets a block.
    if 1024 < rows <= 8192:
        return 16, 1, WARPS
    return BLOCK, pl.cdiv(pl.cdiv(rows, BLOCK), PROGRAMS), WARPS


def _cut_backward(rows: int) -> int:
    """Return the number of blocks of rows that each kernel program processes.

    It is at least four (or all, if there are fewer). Every program writes a gradient of all
    parameters, so fewer programs write less.
    """
    blocks = pl.cdiv(rows, BLOCK)
    return min(blocks, max(4, pl.cdiv(blocks, PROGRAMS)))
