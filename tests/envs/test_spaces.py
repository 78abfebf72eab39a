"""Spaces: members are sampled, recognised and described; spaces hash, print, pickle and compare."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Box, DictSpace, Discrete, MultiDiscrete, Space

SPACES = [
    Box(-2.0, 3.0, shape=(4,)),
    Box((-1.0, 0.0), (1.0, 5.0), shape=(2,)),
    Box(-math.inf, (math.inf, 1.0), shape=(3, 2)),
    Box(0, 255, shape=(8, 8, 3), dtype="uint8"),
    Box(0, 1, shape=(5,), dtype=bool),
    Box(-(2**31), 2**31 - 1, shape=(5,), dtype="int32"),
    Box(0.0, 1.0, shape=(3,), dtype="bfloat16"),
    Discrete(3),
    MultiDiscrete((2, 5, 7)),
    DictSpace({"image": Box(0, 255, (2, 2), "uint8"), "speed": Box(0.0, 1.0, ())}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_samples_are_members_with_the_shapes_of_the_spec(space: Space) -> None:
    samples = jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 200))
    assert jax.vmap(space.contains)(samples).all()
    first = jax.tree.map(lambda x: x[0], samples)
    for member in (first, space.zeros()):
        described = jax.tree.map(lambda x: (x.shape, x.dtype), member)
        assert described == jax.tree.map(lambda x: (x.shape, x.dtype), space.spec())


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_are_values(space: Space) -> None:
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space and hash(copy) == hash(space)
    assert len({*SPACES, copy}) == len(SPACES)


def test_samples_cover_the_choices() -> None:
    keys = jax.random.split(jax.random.key(0), 100)
    assert set(jax.vmap(Discrete(3).sample)(keys).tolist()) == {0, 1, 2}
    assert jax.vmap(MultiDiscrete((2, 5)).sample)(keys).max(axis=0).tolist() == [1, 4]
    assert set(jax.vmap(Box(0, 1, (), "int32").sample)(keys).tolist()) == {0, 1}


def test_what_is_no_member() -> None:
    box = Box((-1.0, 0.0), 1.0, shape=(2,))
    assert box.contains(np.array([-1.0, 0.0], np.float32))
    assert not box.contains(np.array([0.0, -0.1], np.float32))
    assert not box.contains(np.array([0.0, np.nan], np.float32))
    assert not box.contains(jnp.zeros((3,)))
    assert not Box(0, 9, (), "int32").contains(0.5)
    assert Discrete(2).contains(1) and not Discrete(2).contains(2) and not Discrete(2).contains(0.0)
    assert not MultiDiscrete((2, 3)).contains(jnp.array([1, 3]))
    pair = DictSpace({"a": Discrete(2), "b": Discrete(3)})
    assert pair.contains({"b": 2, "a": 1})
    assert not pair.contains({"a": 2, "b": 2}) and not pair.contains({"a": 1})


def test_bounds_given_as_arrays_are_kept_hashable() -> None:
    assert Box(np.zeros((2, 2)), np.ones((2, 2)), (2, 2)) == Box(0.0, 1.0, (2, 2))
    box = Box(np.array([[0.0, 1.0]]), 9.0, (3, 2))
    assert box.low == ((0.0, 1.0),) and hash(box)
    assert repr(Box(0.0, 1.0, (2,))) == (
        "Box(low=0.0, high=1.0, shape=(2,), dtype=dtype('float32'))"
    )


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`low` .* shape \(3,\), .* the box's shape \(2,\)"):
        Box((0.0, 0.0, 0.0), 1.0, shape=(2,))
    with pytest.raises(ValueError, match="`high` of a Box of int32 is inf"):
        Box(0, math.inf, shape=(2,), dtype="int32")
