"""The quadruped as a GPU kernel gives the numbers of the quadruped in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.program.backend import backend
from hocket.envs import Quadruped
from hocket.envs.quadruped.backends import dynamics_as_kernel

Quadruped.dynamics.register(
    "interpreted", partial(dynamics_as_kernel, interpret=True), platforms=["cpu"]
)


def test_random_steps() -> None:
    """Let 13 environments, which fill no whole number of blocks, fall to the ground."""
    env, keys = Quadruped(substeps=2), jax.random.split(jax.random.key(0), 13)

    def play(keys: Any) -> Any:
        def one(state: Any, t: Any) -> Any:
            action = jax.vmap(lambda k: env.action_space.sample(jax.random.fold_in(k, t)))(keys)
            state, step = jax.vmap(env.step, in_axes=(0, 0, None))(state, action, keys[0])
            return state, (state, step.terminated)

        return jax.lax.scan(one, jax.vmap(env.reset)(keys)[0], jnp.arange(12))[1]

    run = jax.jit(play)
    expected, fallen = run(keys)
    with backend("interpreted"):
        result, result_fallen = run(keys)
    np.testing.assert_allclose(result.q, expected.q, atol=1e-4)
    np.testing.assert_allclose(result.v, expected.v, atol=5e-3)
    np.testing.assert_array_equal(result_fallen, fallen)
    assert expected.q[-1, :, 2].max() < 0.54  # it has come down


def test_the_kernel_can_be_lowered_for_a_gpu() -> None:
    """Lowering needs no GPU, and refuses operations that Triton does not have."""
    env, keys = Quadruped(), jax.random.split(jax.random.key(0), 16)
    step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, None)))
    state = jax.vmap(lambda key: env.reset(key)[0])(keys)
    traced = step.trace(state, jnp.zeros((16, 8)), keys[0])
    with backend("pallas"):
        assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" not in traced.lower(lowering_platforms=("cuda",)).as_text()
