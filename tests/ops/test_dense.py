"""The GPU kernels of small networks, interpreted, against the same layers written out."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hocket.core.program.tuning import Tuning, tuned
from hocket.nn.layers import MLP
from hocket.ops import dense

KEY = jax.random.key(0)


def make_layers(sizes: tuple[int, ...]) -> tuple[dense.Layer, ...]:
    keys = jax.random.split(KEY, len(sizes) - 1)
    return tuple(
        (jax.random.normal(k, (a, b)) / a**0.5, 0.1 * jax.random.normal(k, (b,)))
        for k, a, b in zip(keys, sizes, sizes[1:], strict=False)
    )


def relative_error(actual: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs)


@pytest.mark.parametrize(
    ("sizes", "activation", "activate_last", "rows"),
    [
        ((4, 64, 64, 2), "tanh", False, 700),
        ((50, 64, 3), "relu", False, 128),
        ((5, 20, 7), "tanh", True, 3),
        ((4, 16, 1), "tanh", False, 1100),
    ],
)
def test_value_and_gradients(
    sizes: tuple[int, ...], activation: str, activate_last: bool, rows: int
) -> None:
    layers, x = make_layers(sizes), jax.random.normal(KEY, (rows, sizes[0]))
    dy = 1e-6 * jax.random.normal(KEY, (rows, sizes[-1]))
    kernel = partial(
        dense.dense, activation=activation, activate_last=activate_last, interpret=True
    )
    plain = partial(dense._plain, dense.Spec(activation, activate_last, True))
    y, pull = jax.vjp(kernel, layers, x)
    expected, pull_plain = jax.vjp(plain, layers, x)
    assert relative_error(y, expected) < 1e-3
    assert relative_error(pull(dy), pull_plain(dy)) < 2e-3


def test_agents_under_vmap() -> None:
    layers, x = make_layers((4, 32, 2)), jax.random.normal(KEY, (3, 130, 4))
    agents = jax.tree.map(lambda w: jnp.stack([w, 2 * w, -w]), layers)

    def loss(layers: Any, x: jax.Array, interpret: bool) -> jax.Array:
        if interpret:
            return jnp.square(dense.dense(layers, x, "tanh", interpret=True)).mean()
        return jnp.square(dense._plain(dense.Spec("tanh", False, True), layers, x)).mean()

    gradients, expected = (
        jax.vmap(jax.grad(partial(loss, interpret=kernel)))(agents, x) for kernel in (True, False)
    )
    assert relative_error(gradients, expected) < 2e-3


def test_an_mlp_becomes_a_kernel_only_where_the_program_is_tuned_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def interpreted(*args: Any, **kwargs: Any) -> jax.Array:
        calls.append(1)
        return kernel(*args, **kwargs, interpret=True)

    kernel = dense.dense
    monkeypatch.setattr(dense, "dense", interpreted)
    network, x = MLP((16, 3)), jax.random.normal(KEY, (2, 5, 4))
    params = network.init(KEY, x)
    expected = network.apply(params, x)
    assert not calls
    with tuned(Tuning(kernels=True)):
        network.init(KEY, x)
        assert not calls
        assert relative_error(network.apply(params, x), expected) < 1e-3
    assert calls
