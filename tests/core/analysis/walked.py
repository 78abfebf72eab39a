"""The kind of what a function makes, found as the analysis finds it: from two traces of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hocket.core.analysis.equations import Walker
from hocket.core.analysis.kinds import Kind

ALL, SHARE = 8, 4  # environments in the fused program, and in a replica

PER_ENV = Kind("per_env", axis=0, outer=1)
MEAN, SUM = Kind("partial"), Kind("partial", degree=1)
COUNT = Kind("uniform", degree=1)  # the number of environments, as a number of the program


class Array(NamedTuple):
    """An input of a traced function. The size `n` is the number of environments."""

    kind: Kind
    shape: tuple[int | str, ...] = ()
    dtype: Any = jnp.float32

    def at(self, num_envs: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            tuple(num_envs if s == "n" else s for s in self.shape), self.dtype
        )


def kinds_of(fn: Callable[..., Any], arrays: Sequence[Array]) -> list[Kind]:
    """Return the kinds of all that a function makes on a replica, from the kinds of its inputs."""
    fused, share = (
        # A new function each time, since jax keeps traces by function and shapes.
        jax.make_jaxpr(lambda *xs: fn(*xs))(*[array.at(n) for array in arrays])
        for n in (ALL, SHARE)
    )
    walker = Walker(SHARE / ALL)
    return walker.program(fused, share, "a test", [array.kind for array in arrays])


def kind_of(fn: Callable[..., Any], *arrays: Array) -> Kind:
    (kind,) = kinds_of(fn, arrays)
    return kind
