"""How the parts of a value that several instances send become one value again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from hocket.core.graph.trace import ValueId


@dataclass(frozen=True)
class Concat:
    """Each part has some of the environments: they are put one after another."""

    axis: int

    def __call__(self, parts: Sequence[Any]) -> Any:
        return jnp.concatenate(parts, self.axis) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class First:
    """Every part is the whole value."""

    def __call__(self, parts: Sequence[Any]) -> Any:
        return parts[0]


Join: TypeAlias = Concat | First
FIRST = First()


class Part(NamedTuple):
    """An array of one of several messages."""

    message: int
    array: int


class Assembly(NamedTuple):
    """One value out of several messages: where its parts are, and how they become the value."""

    join: Join
    parts: tuple[Part, ...]


def assemblies(
    messages: Sequence[Sequence[ValueId]], axes: Mapping[ValueId, int | None]
) -> tuple[Assembly, ...]:
    """How each value is made of messages that have these values: of all who send a part of it."""
    return tuple(
        Assembly(
            FIRST if axis is None else Concat(axis),
            tuple(Part(m, has.index(v)) for m, has in enumerate(messages) if v in has),
        )
        for v, axis in axes.items()
    )
