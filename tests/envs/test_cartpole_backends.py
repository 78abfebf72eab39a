"""CartPole in C++ and as a GPU kernel gives the numbers of CartPole in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.cases import ALGORITHMS, execute, whole

from hocket import make
from hocket.core.graph.trace import init_state
from hocket.core.program.backend import backend
from hocket.envs import CartPole, init_actor, unroll
from hocket.envs.classic.cartpole import CartPoleState
from hocket.envs.classic.cartpole_backends import dynamics_as_kernel
from hocket.testing import difference

CartPole.dynamics.register(
    "interpreted", partial(dynamics_as_kernel, interpret=True), platforms=["cpu"]
)
BACKENDS = ["cpp", "interpreted"]


def act(obs: Any, memory: Any, keys: Any) -> tuple[Any, Any, None]:
    return jax.vmap(lambda k: jax.random.randint(k, (), 0, 2))(keys), memory, None


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("env", [make("CartPole-v1"), make("CartPole-v1", gravity=1.6, dt=0.01)])
def test_200_random_steps(name: str, env: Any) -> None:
    actor = init_actor(env, jax.random.key(0), 300)
    rollout = jax.jit(lambda actor: unroll(env, act, actor, 200)[1])
    expected = rollout(actor)
    with backend(name):
        result = rollout(actor)
    assert (expected.terminated.sum(0) > 1).mean() > 0.9
    np.testing.assert_array_equal(result.terminated, expected.terminated)
    apart = abs(result.next_obs - expected.next_obs).max((0, 2))  # of each environment
    assert np.median(apart) < 1e-5
    assert apart.max() < 1e-3  # while the pole stands, a difference doubles every 9 steps


@pytest.mark.parametrize("name", BACKENDS)
def test_each_of_200_random_steps(name: str) -> None:
    env, key = CartPole(), jax.random.key(0)
    made = jax.jit(lambda actor: unroll(env, act, actor, 200)[1])(init_actor(env, key, 300))

    @jax.jit
    def once_more(obs: Any, actions: Any) -> Any:
        def one(obs: Any, action: Any) -> Any:
            return env.step(CartPoleState(*obs), action, key)[1].obs

        return lax.scan(lambda _, xs: (None, jax.vmap(one)(*xs)), None, (obs, actions))[1]

    with backend(name):
        result = once_more(made.obs, made.action)
    np.testing.assert_allclose(result, made.next_obs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_any_shape_and_any_angle(name: str) -> None:
    keys = jax.random.split(jax.random.key(1), 5)
    for shape in [(), (1,), (7, 3)]:
        *state, raw = (10 * jax.random.normal(k, shape) for k in keys)
        step = jax.jit(lambda *xs: CartPole().dynamics(*xs))
        arrays = *state, (raw > 0).astype(jnp.int8)
        expected = step(*arrays)
        with backend(name):
            result = step(*arrays)
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_an_iteration_of_ppo() -> None:
    algorithm = ALGORITHMS["ppo"]()
    state = jax.jit(lambda key: init_state(algorithm, key, 8))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    expected = step(state)
    with backend("cpp"):
        assert "hocket_cartpole" in step.lower(state).as_text()
        result = step(state)
    assert difference(result, expected) < 1e-5
    assert difference(result[0], state) > 1e-3


def test_the_kernel_can_be_lowered_for_a_gpu_from_here() -> None:
    actor = init_actor(make("CartPole-v1"), jax.random.key(0), 300)
    rollout = jax.jit(lambda actor: unroll(make("CartPole-v1"), act, actor, 4)).trace(actor)
    with backend("pallas"):
        assert "xla.gpu.triton" in rollout.lower(lowering_platforms=("cuda",)).as_text()
    with backend("cpp"), pytest.raises(ValueError, match="`cartpole` in `cpp` cannot run on cuda"):
        rollout.lower(lowering_platforms=("cuda",))


def test_replicas_on_several_devices() -> None:
    _, fused = execute("ppo", whole(), iterations=1)
    devices = tuple(f"cpu:{i}" for i in range(2))
    with backend("cpp"):
        _, replicas = execute("ppo", whole(replicas=2, on=devices), iterations=1)
    assert difference(replicas.state(), fused.state()) < 1e-5
