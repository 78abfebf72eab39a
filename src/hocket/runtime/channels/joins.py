"""How a receiver puts a value together from the parts that several instances send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from hocket.core.graph.trace import ValueId


@dataclass(frozen=True)
class Concat:
    """The join of parts that hold different environments: it concatenates them."""

    axis: int

    def __call__(self, parts: Sequence[Any]) -> Any:
        return jnp.concatenate(parts, self.axis) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class First:
    """The join of parts that are all equal, because each is the whole value: it takes the first."""

    def __call__(self, parts: Sequence[Any]) -> Any:
        return parts[0]


Join: TypeAlias = Concat | First
FIRST = First()


class Part(NamedTuple):
    """The position of one part of a value: a message index, and an array index in that message."""

    message: int
    array: int


class Assembly(NamedTuple):
    """The recipe for one value: where its parts are in the messages, and how to join them."""

    join: Join
    parts: tuple[Part, ...]


def assemblies(
    messages: Sequence[Sequence[ValueId]], axes: Mapping[ValueId, int | None]
) -> tuple[Assembly, ...]:
    """Return, for each value, how to put it together from the messages that carry it.

    `axes` has the environment axis of each value, None if it has no such axis. `messages` lists the
    values that each message contains, in order.
    """
    return tuple(
        Assembly(
            FIRST if axis is None else Concat(axis),
            tuple(Part(m, has.index(v)) for m, has in enumerate(messages) if v in has),
        )
        for v, axis in axes.items()
    )
