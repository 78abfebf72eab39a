"""An elementwise function as exactly one GPU kernel, where XLA might make several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

BLOCK = 256
"""The number of elements that one program of the kernel computes: two for each thread."""
WARPS = 4

Function = Callable[..., Sequence[Array]]


def elementwise(fn: Function, *arrays: Array, name: str, interpret: bool = False) -> list[Array]:
    """Compute `fn(*arrays)` as one kernel. `fn` maps arrays of one shape to arrays of that shape.

    With `interpret` the kernel runs without a GPU, for tests.
    """
    shape, size = arrays[0].shape, arrays[0].size
    specs = jax.eval_shape(fn, *arrays)
    block = pl.BlockSpec((BLOCK,), lambda i: (i,))
    outs = pl.pallas_call(
        partial(_kernel, fn, size, len(arrays)),
        grid=(pl.cdiv(size, BLOCK),),
        in_specs=[block] * len(arrays),
        out_specs=[block] * len(specs),
        out_shape=[jax.ShapeDtypeStruct((size,), spec.dtype) for spec in specs],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name=name,
    )(*(x.reshape(-1) for x in arrays))
    return [out.reshape(shape) for out in outs]


def _kernel(fn: Function, size: int, num_ins: int, *refs: Any) -> None:
    inside = pl.program_id(0) * BLOCK + lax.broadcasted_iota(jnp.int32, (BLOCK,), 0) < size
    values = [triton.load(ref, mask=inside, other=0) for ref in refs[:num_ins]]
    for ref, value in zip(refs[num_ins:], fn(*values), strict=True):
        triton.store(ref, value, mask=inside)
