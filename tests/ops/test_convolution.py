from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hocket.ops.convolution import NUMBERS, convolve

SHAPES = {
    "atari 1": ((3, 84, 84, 4), (8, 8, 4, 32), 4),
    "atari 2": ((3, 20, 20, 32), (4, 4, 32, 64), 2),
    "atari 3": ((3, 9, 9, 64), (3, 3, 64, 64), 1),
    "a border that no window reaches": ((2, 11, 13, 2), (4, 4, 2, 3), 2),
    "a stride that does not divide the kernel": ((2, 11, 11, 2), (3, 3, 2, 3), 2),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_the_convolution(shape: str) -> None:
    size, kernel_size, stride = SHAPES[shape]
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in (size, kernel_size))

    def loss(conv: Any) -> Any:
        def of(x: Any, kernel: Any) -> Any:
            y = conv(
                x, kernel, (stride, stride), "VALID", lhs_dilation=(1, 1), rhs_dilation=(1, 1),
                dimension_numbers=lax.conv_dimension_numbers(x.shape, kernel.shape, NUMBERS),
                feature_group_count=1, precision=None,
            )  # fmt: skip
            return jnp.sin(y).sum()

        return jax.jit(jax.value_and_grad(of, argnums=(0, 1)))

    ours, theirs = (loss(conv)(x, kernel) for conv in (convolve, lax.conv_general_dilated))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * float(jnp.abs(b).max()))
