"""Gymnasium's spaces in hocket's, and what lies in them, to and from rows of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from hocket.envs.host import new_array
from hocket.envs.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space, unbounded

Path: TypeAlias = tuple[str, ...]

# Without 64-bit types, which JAX turns into these as well.
NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


class Wrong(ValueError):
    """What an environment returned is not what its space says; what of it, as a sentence's end."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or action: where it stands in its tree, and its shape."""

    path: Path
    space: Any
    """Gymnasium's."""
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def floating(self) -> bool:
        return self.dtype.kind == "f"

    def is_as(self, rows: np.ndarray) -> bool:
        """Whether rows of the environments' own are, byte for byte, those of this leaf."""
        if isinstance(self.space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            as_they_are = not np.any(self.space.start)
        else:
            as_they_are = isinstance(self.space, gym.spaces.Box)
        size = len(rows) * math.prod(self.shape)
        return as_they_are and self.dtype == rows.dtype and size == rows.size


class Observations:
    """How observations of a Gymnasium space become rows of arrays.

    Floats become float32 and 64-bit integers 32-bit ones; other arrays keep their dtype. A choice
    (`Discrete`) becomes a one-hot vector, which is what a network can read; several choices
    (`MultiDiscrete`) are int32 numbers from 0 on.
    """

    def __init__(self, space: Any, name: str) -> None:
        self.space = _observed(space, name)
        self.leaves = list(_leaves(space, self.space, ()))
        self._single = self.leaves[0] if not isinstance(space, gym.spaces.Dict) else None

    def empty(self, num_envs: int) -> list[np.ndarray]:
        """New arrays for so many environments."""
        return [new_array((num_envs, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def tree(self, arrays: Sequence[np.ndarray]) -> Any:
        """Arrays, one for each leaf, as the observation they make up."""
        return _tree(self.leaves, arrays)

    def batch(self, obs: Any) -> list[np.ndarray]:
        """Observations that come `[n, ...]`, in new arrays."""
        found = [np.asarray(_at(obs, leaf.path)) for leaf in self.leaves]
        arrays = self.empty(len(found[0]))
        for leaf, given, rows in zip(self.leaves, found, arrays, strict=True):
            if given.shape == rows.shape:
                rows[:] = given
            else:
                write = _leaf_writer(leaf, rows)
                for i, one in enumerate(given):
                    write(i, one)
        return arrays

    def writer(self, arrays: Sequence[np.ndarray]) -> Callable[[int, Any], None]:
        """What writes an environment's observation into row `i` of the arrays."""
        if self._single is not None:
            return _leaf_writer(self._single, arrays[0])
        writers = [_leaf_writer(*x) for x in zip(self.leaves, arrays, strict=True)]
        paths = [leaf.path for leaf in self.leaves]

        def write(i: int, obs: Any) -> None:
            for path, write_leaf in zip(paths, writers, strict=True):
                write_leaf(i, _at(obs, path))

        return write


class Actions:
    """How rows of arrays become actions in a Gymnasium space."""

    def __init__(self, space: Any, name: str) -> None:
        self.space = _acted(space, name)
        self.leaves = list(_leaves(space, self.space, ()))

    def arrays(self, actions: Any) -> list[np.ndarray]:
        """The arrays of a tree of actions `[n, ...]`."""
        found = [np.asarray(_at(actions, leaf.path)) for leaf in self.leaves]
        for leaf, array in zip(self.leaves, found, strict=True):
            if array.shape[1:] != leaf.shape:
                raise ValueError(
                    f"actions in {self.space} have the shape [n, *{list(leaf.shape)}], found "
                    f"{list(array.shape)}."
                )
        return found

    def batch(self, arrays: Sequence[np.ndarray]) -> Any:
        """The actions of all environments `[n, ...]` as Gymnasium has them, in new arrays."""
        return _tree(self.leaves, self._converted(arrays))

    def rows(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """An action for each environment; none of them shares memory with the arrays."""
        columns = [
            x.tolist() if isinstance(leaf.space, gym.spaces.Discrete) else list(x)
            for leaf, x in zip(self.leaves, self._converted(arrays), strict=True)
        ]
        if not self.leaves[0].path:
            return columns[0]
        return [_tree(self.leaves, row) for row in zip(*columns, strict=True)]

    def _converted(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [_actions(leaf, x) for leaf, x in zip(self.leaves, arrays, strict=True)]


def _observed(space: Any, name: str) -> Space:
    match space:
        case gym.spaces.Discrete():
            return Box(0.0, 1.0, (int(space.n),))
        case gym.spaces.MultiBinary():
            return Box(0, 1, tuple(space.shape), "int8")
        case _:
            return _converted(space, name, "observes", _observed)


def _acted(space: Any, name: str) -> Space:
    match space:
        case gym.spaces.Discrete():
            return Discrete(int(space.n))
        case gym.spaces.MultiBinary():
            return MultiDiscrete((2,) * int(np.prod(space.shape)))
        case _:
            return _converted(space, name, "acts in", _acted)


def _converted(space: Any, name: str, verb: str, inner: Callable[[Any, str], Space]) -> Space:
    match space:
        case gym.spaces.Box():
            return _box(space)
        case gym.spaces.MultiDiscrete():
            return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
        case gym.spaces.Dict():
            return DictSpace({key: inner(part, name) for key, part in space.spaces.items()})
    raise ValueError(
        f"the environment `{name}` {verb} {space}, and a {type(space).__name__} space has no "
        f"counterpart here. Wrap the environment so that it uses Box, Discrete, MultiDiscrete, "
        f"MultiBinary or Dict, such as with gymnasium.wrappers.FlattenObservation, register the "
        f"wrapped one and name that."
    )


def _box(space: Any) -> Box:
    dtype: Any = np.dtype(NARROW.get(space.dtype.name, space.dtype))
    low, high = space.low, space.high
    if dtype.kind in "iu":
        low, high = (np.clip(x, np.iinfo(dtype).min, np.iinfo(dtype).max) for x in (low, high))
    elif dtype.kind == "b":
        low, high = low.astype(int), high.astype(int)
    else:
        low, high = (unbounded(x, dtype) for x in (low, high))
    return Box(low, high, space.shape, dtype)


def _leaves(space: Any, ours: Space, path: Path) -> Iterator[Leaf]:
    if isinstance(ours, DictSpace):
        for key, part in ours.spaces.items():
            yield from _leaves(space[key], part, (*path, key))
    else:
        spec = ours.spec()
        yield Leaf(path, space, tuple(spec.shape), np.dtype(spec.dtype))


def _at(tree: Any, path: Path) -> Any:
    try:
        for key in path:
            tree = tree[key]
    except (KeyError, TypeError, IndexError):
        raise Wrong(f"has nothing at {'/'.join(path)}: {_short(tree)}") from None
    return tree


def _tree(leaves: Sequence[Leaf], values: Sequence[Any]) -> Any:
    if not leaves[0].path:
        return values[0]
    tree: dict[str, Any] = {}
    for leaf, value in zip(leaves, values, strict=True):
        inner = tree
        for key in leaf.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[leaf.path[-1]] = value
    return tree


def _leaf_writer(leaf: Leaf, rows: np.ndarray) -> Callable[[int, Any], None]:
    space, shape, ndarray = leaf.space, leaf.shape, np.ndarray
    match space:
        case gym.spaces.Discrete():

            def write_choice(i: int, choice: Any) -> None:
                rows[i] = 0.0
                rows[i, _choice(space, choice)] = 1.0

            return write_choice
        case gym.spaces.MultiDiscrete():

            def write_choices(i: int, choices: Any) -> None:
                choices = _array(choices, space.shape, np.dtype(np.int32))
                rows[i] = (choices - space.start).reshape(-1)

            return write_choices

    given, dtype = np.dtype(space.dtype), leaf.dtype

    def write(i: int, obs: Any) -> None:
        # The usual case costs two comparisons: this runs once for every step of every environment.
        if obs.__class__ is not ndarray or obs.dtype is not given or obs.shape != shape:
            obs = _array(obs, shape, dtype)
        rows[i] = obs

    return write


def _array(obs: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        found = np.asarray(obs)
    except ValueError:
        raise Wrong(f"is no array: {_short(obs)}") from None
    if found.shape != shape:
        raise Wrong(f"has shape {found.shape} where its space says {shape}")
    if not np.can_cast(found.dtype, dtype, "same_kind"):
        raise Wrong(f"has dtype {found.dtype} where its space says {dtype}")
    return found


def _choice(space: Any, choice: Any) -> int:
    found = _array(choice, (), np.dtype(np.int64))
    index = int(found) - int(space.start)
    if not 0 <= index < space.n:
        raise Wrong(f"is {int(found)}, which is not in {space}")
    return index


def _actions(leaf: Leaf, array: np.ndarray) -> np.ndarray:
    space = leaf.space
    shaped = array.reshape(len(array), *space.shape).astype(space.dtype)
    match space:
        case gym.spaces.Discrete() | gym.spaces.MultiDiscrete():
            return shaped + space.start
        case _:
            return shaped


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"a {type(value).__name__}"
