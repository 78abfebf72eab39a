from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hocket.ops import calm_adam, clipped_adam


def step_size(optimizer: optax.GradientTransformation, size: int, norm: float) -> float:
    """How far, for each parameter, the second of two equal gradients of that norm leads."""
    gradient = jnp.full(size, norm / np.sqrt(size))
    _, state = optimizer.update(gradient, optimizer.init(gradient))
    step, _ = optimizer.update(gradient, state)
    assert isinstance(step, jax.Array)
    return float(step.mean())


@pytest.mark.parametrize("size", [4, 4_000, 1_000_000])
def test_small_gradients_make_small_steps_for_networks_of_any_size(size: int) -> None:
    optimizer = calm_adam(1.0, calm_norm=0.1)
    steps = [step_size(optimizer, size, norm) for norm in (0.001, 0.1, 1.0)]
    np.testing.assert_allclose(steps, [1 / 101, 1 / 2, 10 / 11], rtol=1e-3)
    assert step_size(clipped_adam(1.0), size=4, norm=0.001) > 0.95  # Adam's usual ones are large


def test_gradients_are_clipped_before() -> None:
    steps = [
        step_size(make(0.1), 16, norm)
        for make in (clipped_adam, lambda most: calm_adam(most, calm_norm=0.1))
        for norm in (0.1, 100.0)
    ]
    np.testing.assert_allclose(steps[0::2], steps[1::2], rtol=1e-5)
