"""Conversion of Gymnasium's spaces and observations to hocket's, and of actions back."""

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

# 64-bit types and the types that replace them, as JAX does by default.
NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


class Wrong(ValueError):
    """Raised for an observation outside its space.

    The message is the end of a sentence that begins with "returned an observation that".
    """


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or action, with its path in the tree of arrays."""

    path: Path
    space: Any
    """Gymnasium's space of the array."""
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def is_choice(self) -> bool:
        """True for choices, which Gymnasium numbers from the space's `start`, but hocket from 0."""
        return isinstance(self.space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)

    def is_as(self, rows: np.ndarray) -> bool:
        """Return True if `rows` can be used as the environments gave them, without conversion."""
        unchanged = isinstance(self.space, gym.spaces.Box) or (
            self.is_choice and not np.any(self.space.start)
        )
        size = len(rows) * math.prod(self.shape)
        return unchanged and self.dtype == rows.dtype and size == rows.size


class Observations:
    """Converts observations of a Gymnasium space to rows of arrays.

    Floats become float32 and 64-bit integers become 32-bit; other arrays keep their dtype. One
    choice (`Discrete`) becomes a one-hot vector, which a network can read. Several choices
    (`MultiDiscrete`) become int32 numbers that count from 0.
    """

    def __init__(self, space: Any, name: str) -> None:
        self.space = _converted(space, name, acting=False)
        self.leaves = list(_leaves(space, self.space, ()))

    def empty(self, num_envs: int) -> list[np.ndarray]:
        """Return a new array for each leaf, with a row for each environment."""
        return [new_array((num_envs, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def tree(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return the observation tree with `arrays` as its leaves."""
        return _tree(self.leaves, arrays)

    def batch(self, obs: Any) -> list[np.ndarray]:
        """Convert a batch of observations, `[n, ...]`, to rows of new arrays."""
        batches = [np.asarray(_at(obs, leaf.path)) for leaf in self.leaves]
        arrays = self.empty(len(batches[0]))
        for leaf, batch, rows in zip(self.leaves, batches, arrays, strict=True):
            if batch.shape == rows.shape:
                rows[:] = batch
            else:
                write = _leaf_writer(leaf, rows)
                for i, one in enumerate(batch):
                    write(i, one)
        return arrays

    def writer(self, arrays: Sequence[np.ndarray]) -> Callable[[int, Any], None]:
        """Return a function that writes an environment's observation into row `i` of the arrays."""
        if not self.leaves[0].path:
            return _leaf_writer(self.leaves[0], arrays[0])
        pairs = zip(self.leaves, arrays, strict=True)
        writers = [(leaf.path, _leaf_writer(leaf, rows)) for leaf, rows in pairs]

        def write(i: int, obs: Any) -> None:
            for path, write_leaf in writers:
                write_leaf(i, _at(obs, path))

        return write


class Actions:
    """Converts rows of arrays to actions of a Gymnasium space."""

    def __init__(self, space: Any, name: str) -> None:
        self.space = _converted(space, name, acting=True)
        self.leaves = list(_leaves(space, self.space, ()))

    def arrays(self, actions: Any) -> list[np.ndarray]:
        """Return the arrays of a tree of actions, `[n, ...]`, one for each leaf."""
        arrays = [np.asarray(_at(actions, leaf.path)) for leaf in self.leaves]
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if array.shape[1:] != leaf.shape:
                raise ValueError(
                    f"actions in {self.space} must have the shape "
                    f"[{', '.join(map(str, ('n', *leaf.shape)))}], found {list(array.shape)}."
                )
        return arrays

    def batch(self, arrays: Sequence[np.ndarray]) -> Any:
        """Convert `arrays` to a batch of Gymnasium's actions, `[n, ...]`, in new arrays."""
        return _tree(self.leaves, self._converted(arrays))

    def rows(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return a list with one action for each environment, copied from `arrays`."""
        columns = [
            x.tolist() if isinstance(leaf.space, gym.spaces.Discrete) else list(x)
            for leaf, x in zip(self.leaves, self._converted(arrays), strict=True)
        ]
        if not self.leaves[0].path:
            return columns[0]
        return [_tree(self.leaves, row) for row in zip(*columns, strict=True)]

    def _converted(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [_to_gymnasium(leaf, x) for leaf, x in zip(self.leaves, arrays, strict=True)]


def _converted(space: Any, name: str, *, acting: bool) -> Space:
    """Return hocket's equivalent of Gymnasium's `space`.

    Set `acting` for an action space: some spaces convert differently for actions and observations.
    """
    match space:
        case gym.spaces.Discrete():
            return Discrete(int(space.n)) if acting else Box(0.0, 1.0, (int(space.n),))
        case gym.spaces.MultiBinary():
            choices = MultiDiscrete((2,) * int(np.prod(space.shape)))
            return choices if acting else Box(0, 1, tuple(space.shape), "int8")
        case gym.spaces.Box():
            return _box(space)
        case gym.spaces.MultiDiscrete():
            return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
        case gym.spaces.Dict():
            parts = space.spaces.items()
            return DictSpace({key: _converted(part, name, acting=acting) for key, part in parts})
    part, wrapper = ("action", "Transform") if acting else ("observation", "Flatten")
    raise ValueError(
        f"the {part} space of the environment `{name}` contains {space}, but hocket supports no "
        f"{type(space).__name__} space. Wrap the environment so that it uses Box, Discrete, "
        f"MultiDiscrete, MultiBinary or Dict, for example with "
        f"gymnasium.wrappers.{wrapper}{part.capitalize()}. Then register the wrapped environment, "
        f"and use its name."
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
        raise Wrong(f"has no entry {'/'.join(path)}: {_short(tree)}") from None
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
        # Runs in every step of every environment, so the usual case costs only three comparisons.
        if obs.__class__ is not ndarray or obs.dtype is not given or obs.shape != shape:
            obs = _array(obs, shape, dtype)
        rows[i] = obs

    return write


def _array(obs: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        array = np.asarray(obs)
    except ValueError:
        raise Wrong(f"is no array: {_short(obs)}") from None
    if array.shape != shape:
        raise Wrong(f"has shape {array.shape}, but its space says {shape}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise Wrong(f"has dtype {array.dtype}, but its space says {dtype}")
    return array


def _choice(space: Any, choice: Any) -> int:
    number = int(_array(choice, (), np.dtype(np.int64)))
    index = number - int(space.start)
    if not 0 <= index < space.n:
        raise Wrong(f"is {number}, which is not in {space}")
    return index


def _to_gymnasium(leaf: Leaf, array: np.ndarray) -> np.ndarray:
    """Return a copy of `array` in Gymnasium's shape and dtype, with `start` added to choices."""
    actions = array.reshape(len(array), *leaf.space.shape).astype(leaf.space.dtype)
    return actions + leaf.space.start if leaf.is_choice else actions


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"a {type(value).__name__}"
