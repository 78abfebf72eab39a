"""Networks give the same numbers for any leading axes, and keep environments apart."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hocket.nn.layers import CNN, MLP, Conv, Dueling, LogStd
from hocket.nn.networks import encoder, grid_cnn, nature_cnn, network
from hocket.nn.recurrent import GRU, Recurrent, reset_memory, scan_memory

KEY = jax.random.key(0)
T, N = 3, 4


def init(network: linen.Module, *inputs: Any) -> Any:
    return jax.jit(network.init)(KEY, *inputs)


def apply(network: linen.Module, params: Any, *inputs: Any) -> Any:
    return jax.jit(network.apply)(params, *inputs)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (MLP((8, 5)), (6,)),
        (grid_cnn(), (10, 5, 1)),
        (CNN((Conv(4, 3, 2), Conv(6, 2)), features=7, activation="tanh"), (9, 8, 2)),
        (linen.Sequential([grid_cnn(), Dueling(3, hidden=(8,))]), (10, 10, 4)),
    ],
    ids=["mlp", "grid", "cnn", "dueling"],
)
def test_any_leading_axes(network: linen.Module, shape: tuple[int, ...]) -> None:
    x = jax.random.normal(KEY, (2, T, N, *shape))
    params = init(network, x[0, 0])
    jax.tree.map(np.testing.assert_array_equal, params, init(network, x[0]))
    whole = apply(network, params, x)
    for part in ((0,), (1, 2), (1, 2, 3)):
        np.testing.assert_allclose(apply(network, params, x[part]), whole[part], atol=1e-5)


def test_nature_cnn_takes_bytes() -> None:
    frames = jax.ShapeDtypeStruct((T, N, 84, 84, 4), jnp.uint8)
    y, params = jax.eval_shape(partial(nature_cnn().init_with_output, KEY), frames)
    assert (y.shape, y.dtype) == ((T, N, 512), jnp.float32)
    kernels = [params["params"][f"Conv_{i}"]["kernel"].shape for i in range(3)]
    assert kernels == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    assert params["params"]["Dense_0"]["kernel"].shape == (3136, 512)


def test_bytes_are_scaled_to_one() -> None:
    x = jax.random.randint(KEY, (N, 6, 6, 1), 0, 256).astype(jnp.uint8)
    network = grid_cnn()
    params = init(network, x)
    output, expected = apply(network, params, x), apply(network, params, x / 255.0)
    np.testing.assert_allclose(output, expected, atol=1e-6)


def test_mlp_weights_are_orthogonal_at_their_scales() -> None:
    params = init(MLP((16, 3), out_scale=0.01), jnp.zeros(16))["params"]
    hidden, out = params["Dense_0"]["kernel"], params["Dense_1"]["kernel"]
    np.testing.assert_allclose(hidden.T @ hidden, 2 * np.eye(16), atol=1e-5)
    np.testing.assert_allclose(out.T @ out, 1e-4 * np.eye(3), atol=1e-8)


def test_mlp_is_linear_last_unless_asked() -> None:
    x = 100.0 * jnp.ones((1, 4))
    params = init(MLP((4,)), x)
    linear, bent = (apply(MLP((4,)), params, x), apply(MLP((4,), activate_last=True), params, x))
    np.testing.assert_allclose(jnp.tanh(linear), bent, rtol=1e-6)


@pytest.mark.parametrize("network", [MLP((4,), "rleu"), CNN((Conv(4, 3),), 8, "rleu")])
def test_unknown_activation_suggests_one(network: linen.Module) -> None:
    with pytest.raises(ValueError, match=r"unknown activation `rleu`\. Did you mean `relu`\?"):
        init(network, jnp.zeros((N, 5, 5, 1)))


def test_dueling_mean_action_value_is_the_state_value() -> None:
    x = jax.random.normal(KEY, (T, N, 6))
    params = init(Dueling(3), x)
    value = apply(MLP((1,)), {"params": params["params"]["value"]}, x)
    q = apply(Dueling(3), params, x)
    assert q.shape == (T, N, 3)
    np.testing.assert_allclose(q.mean(-1), value[..., 0], atol=1e-6)


def test_gru_forgets_where_an_episode_begins() -> None:
    gru = GRU(5)
    x = jax.random.normal(KEY, (T, N, 2))
    params = init(gru, gru.initial(N), x[0])
    step: Any = partial(gru.apply, params)
    first = jnp.zeros((T, N), bool).at[1, 2].set(True)
    memory, y = scan_memory(step, jnp.ones((N, 5)), x, first)

    expected, m = [], np.ones((N, 5), np.float32)
    for t in range(T):
        m, y_t = step(jnp.where(first[t][:, None], 0.0, m), x[t])
        expected.append(y_t)
    np.testing.assert_allclose(y, np.stack(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(memory, m, rtol=1e-5, atol=1e-6)
    fresh, _ = scan_memory(step, gru.initial(N), x[1:], jnp.zeros((T - 1, N), bool))
    np.testing.assert_allclose(memory[2], fresh[2], rtol=1e-5, atol=1e-6)
    assert not np.allclose(memory[1], fresh[1])


def test_a_recurrent_network_replays_what_it_remembered() -> None:
    obs = jax.random.normal(KEY, (T, N, 2, 3))
    spec = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    recurrent = Recurrent(encoder(spec, (8,), "tanh"), GRU(5), heads=(MLP((4,)), MLP((1,))))
    params = jax.jit(recurrent.init)(KEY, obs[0, 0])
    first = jnp.zeros((T, N), bool).at[2, 1].set(True)
    memory, remembered = jnp.broadcast_to(recurrent.initial, (N, 5)), []
    for t in range(T):
        memory = recurrent.remember(params, reset_memory(memory, first[t]), obs[t])
        remembered.append(memory)
    replayed = recurrent.replay(params, jnp.zeros((N, 5)), obs, first)
    np.testing.assert_allclose(replayed, jnp.stack(remembered), atol=1e-6)
    policy, value = recurrent.read(params, replayed)
    assert (policy.shape, value.shape) == ((T, N, 4), (T, N, 1))


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (10, 10, 2), (36, 36, 1)])
def test_the_default_network_reads_any_array(shape: tuple[int, ...]) -> None:
    spec = jax.ShapeDtypeStruct(shape, jnp.float32)
    net = network(spec, 2, (8,), "tanh", after=(LogStd(),))
    batch = jax.ShapeDtypeStruct((T, N, *shape), jnp.float32)
    params = jax.eval_shape(net.init, KEY, spec)
    assert jax.eval_shape(net.apply, params, batch).shape == (T, N, 4)


def test_the_default_network_refuses_a_dict() -> None:
    with pytest.raises(ValueError, match="one array"):
        network({"camera": jax.ShapeDtypeStruct((3,), jnp.float32)}, 2, (8,), "tanh")


def test_reset_memory_reaches_every_leaf() -> None:
    memory = {"h": jnp.ones((N, 2)), "c": jnp.ones((N, 2, 3)), "age": jnp.ones(N, int)}
    first = jnp.array([True, False, False, True])
    for name, leaf in reset_memory(memory, first).items():
        assert leaf.dtype == memory[name].dtype
        np.testing.assert_array_equal(leaf.reshape(N, -1).min(-1), ~first)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices, real or fake")
def test_a_cnn_leaves_split_environments_where_they_are() -> None:
    mesh = jax.make_mesh((2,), ("envs",), (AxisType.Auto,), devices=jax.devices()[:2])
    x = jnp.zeros((T, N, 6, 6, 1))
    params = init(grid_cnn(), x)
    split = NamedSharding(mesh, PartitionSpec(None, "envs"))
    compiled = jax.jit(grid_cnn().apply).lower(params, jax.device_put(x, split)).compile()
    assert compiled.output_shardings.is_equivalent_to(split, 3)
    assert not re.search("all-gather|all-to-all|collective-permute", compiled.as_text() or "")
