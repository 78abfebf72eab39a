"""Shuffles keep every element once, and every environment's share equal in all minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.ops import shuffle_envs, shuffle_time, shuffle_time_each

T, N, M = 8, 6, 2
KEY = jax.random.key(1)
KEYS = jax.random.split(KEY, N)


def labels() -> dict[str, jax.Array]:
    """Every element says which step and environment it is; the second leaf has a trailing axis."""
    time, env = jnp.meshgrid(jnp.arange(T), jnp.arange(N), indexing="ij")
    return {"time": time, "both": jnp.stack([time, env], axis=-1)}


@pytest.mark.parametrize("each", [False, True])
def test_time_shuffles_keep_environments_apart(each: bool) -> None:
    out = shuffle_time_each(KEYS, labels(), M) if each else shuffle_time(KEY, labels(), M)
    time, env = out["both"][..., 0], out["both"][..., 1]
    assert time.shape == (M, T // M, N)
    np.testing.assert_array_equal(out["time"], time)
    np.testing.assert_array_equal(env, np.broadcast_to(np.arange(N), env.shape))
    order = np.asarray(time).reshape(T, N)
    np.testing.assert_array_equal(np.sort(order, axis=0), labels()["time"])
    orders = {tuple(order[:, n]) for n in range(N)}
    assert tuple(range(T)) not in orders
    assert len(orders) == (N if each else 1)


def test_env_shuffle_takes_one_environment_of_each_block() -> None:
    out = shuffle_envs(KEY, labels(), M)
    time, env = np.asarray(out["both"][..., 0]), np.asarray(out["both"][..., 1])
    assert env.shape == (M, T, N // M)
    np.testing.assert_array_equal(time, np.broadcast_to(np.arange(T)[:, None], time.shape))
    assert (env == env[:, :1]).all(), "an environment's steps stay together, in order"
    np.testing.assert_array_equal(np.sort(env[:, 0], axis=None), np.arange(N))
    np.testing.assert_array_equal(env[:, 0] // M, np.broadcast_to(np.arange(N // M), (M, N // M)))


def test_env_shuffle_of_memory_follows_that_of_the_rollout() -> None:
    rollout = shuffle_envs(KEY, labels()["both"][..., 1], M)
    memory = shuffle_envs(KEY, jnp.arange(N), M, axis=0)
    np.testing.assert_array_equal(memory, rollout[:, 0])


def test_env_shuffle_decides_whose_turn_it_is() -> None:
    turns = {int(shuffle_envs(jax.random.key(i), jnp.arange(N), M, axis=0)[0, 0]) for i in range(9)}
    assert turns == {0, 1}


@pytest.mark.parametrize("shuffle", ["time", "time_each", "envs"])
def test_half_of_the_environments_make_half_of_each_minibatch(shuffle: str) -> None:
    """The minibatches of a part are the parts of the minibatches, so replicas learn the same."""

    def run(tree: dict[str, jax.Array], keys: jax.Array) -> dict[str, jax.Array]:
        if shuffle == "time_each":
            return shuffle_time_each(keys, tree, M)
        return (shuffle_time if shuffle == "time" else shuffle_envs)(KEY, tree, M)

    tree = jax.tree.map(lambda x: jnp.concatenate([x, x + 100], axis=1), labels())
    keys = jax.random.split(KEY, 2 * N)
    whole = run(tree, keys)
    for part in (slice(0, N), slice(N, 2 * N)):
        shuffled = run(jax.tree.map(lambda x, part=part: x[:, part], tree), keys[part])
        width = shuffled["time"].shape[2]
        share = slice(0, width) if part.start == 0 else slice(width, None)
        jax.tree.map(
            lambda f, w, share=share: np.testing.assert_array_equal(f, w[:, :, share]),
            shuffled,
            whole,
        )


def test_an_uneven_cut_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"8 time steps into 3 .*`minibatches=2`, or a multiple"):
        shuffle_time(KEY, labels(), 3)
    with pytest.raises(ValueError, match=r"8 time steps into 5 .*`minibatches=4`, .* of 5"):
        shuffle_time_each(KEYS, labels(), 5)
    with pytest.raises(ValueError, match=r"6 environments into 4 .*`minibatches=3`.*each replica"):
        shuffle_envs(KEY, labels(), 4)
    with pytest.raises(ValueError, match=r"into 0 minibatches"):
        shuffle_time(KEY, labels(), 0)
