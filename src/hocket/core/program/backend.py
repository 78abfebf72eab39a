"""Swappable functions, which have other implementations beside the one in JAX: C++, a GPU kernel.

The implementation is chosen when a program is lowered. A traced program has one equation for each
call, which names no implementation, so a graph and its plans are the same for every backend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias, cast, overload

import jax
import jax.numpy as jnp
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hocket.errors import unknown
from hocket.system.platforms import kind_of

JAX = "jax"

Arrays: TypeAlias = Sequence[Any]
Function: TypeAlias = Callable[..., Arrays]
"""`(settings, *arrays) -> arrays`, element by element: all arrays have one shape."""

swappable_p = Primitive("swappable")
swappable_p.multiple_results = True
source_info_util.register_exclusion(__file__)  # equations get the caller's line

# This setting is in the key of every jax cache, so no program is reused under another backend.
_backend = jax.make_user_context(JAX)
KNOWN = {JAX}
"""The names of all backends for which some function has an implementation."""


class _Implementation(NamedTuple):
    fn: Function
    platforms: tuple[str, ...]


class Swappable:
    """A function or method with several implementations, as `swappable` makes it."""

    def __init__(self, name: str, fn: Function) -> None:
        functools.update_wrapper(cast(Any, self), fn)
        self.name, self.fn = name, fn
        self._others: dict[str, _Implementation] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def backends(self) -> tuple[str, ...]:
        return (JAX, *self._others)

    def register(self, backend: str, fn: Function, platforms: Iterable[str]) -> None:
        """Add an implementation for some platforms. It must be a function that JAX can trace."""
        self._others[backend] = _Implementation(fn, tuple(platforms))
        KNOWN.add(backend)

    def runs_on(self, backend: str, platform: str) -> bool:
        """Return True if `platform` can run the function in `backend`.

        Where a function has no implementation in `backend`, JAX's is used, which runs everywhere.
        """
        return backend not in self._others or kind_of(platform) in self._others[backend].platforms

    def chosen(self) -> Function:
        """Return the implementation for the backend that the current `backend` context selects."""
        other = self._others.get(_backend.value)
        return other.fn if other else self.fn

    @overload
    def __get__(self, owner: None, _type: type | None = None) -> Swappable: ...
    @overload
    def __get__(self, owner: Any, _type: type | None = None) -> Callable[..., tuple[Any, ...]]: ...

    def __get__(self, owner: Any, _type: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, settings: Any, *arrays: Any) -> tuple[Any, ...]:
        arrays = tuple(jnp.asarray(x) for x in arrays)
        shapes = {x.shape for x in arrays}
        if len(shapes) != 1:
            raise ValueError(
                f"the arrays given to `{self.name}` must have one shape, found "
                f"{', '.join(str(x.shape) for x in arrays)}."
            )
        try:
            hash(settings)
        except TypeError:  # arrays in the settings, as under `vmap`: only JAX takes them
            return tuple(self.fn(settings, *arrays))
        return tuple(swappable_p.bind(*arrays, of=self, settings=settings))


def swappable(name: str) -> Callable[[Function], Swappable]:
    """Mark a function of arrays that other backends may implement as well.

    The function is elementwise: arrays of one shape in, a tuple of arrays of that shape out. Its
    first argument holds the settings and must be hashable. In a method it is `self`, a frozen
    dataclass.

        @swappable("spring")
        def dynamics(self, x, v): return x + self.dt * v, v - self.dt * self.stiffness * x

        Spring.dynamics.register("cpp", dynamics_in_cpp, platforms=["cpu"])
    """
    return functools.partial(Swappable, name)


def backend(name: str) -> AbstractContextManager[None]:
    """Inside this context, lower programs with the implementations of the backend called `name`.

    A function without such an implementation keeps JAX's. Call jitted functions inside the context,
    too: a call outside runs a program with JAX's implementations.
    """
    if name not in KNOWN:
        raise ValueError(unknown("backend", name, KNOWN))
    return cast(AbstractContextManager[None], _backend(name))


def _abstract(*avals: Any, of: Swappable, settings: Any) -> list[Any]:
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    outs = jax.eval_shape(functools.partial(of.fn, settings), *specs)
    wrong = [out.shape for out in outs if out.shape != avals[0].shape]
    if wrong:
        raise ValueError(
            f"`{of.name}` must be elementwise: from arrays of shape {avals[0].shape} it made one "
            f"of shape {wrong[0]}."
        )
    return [avals[0].update(dtype=out.dtype, weak_type=False) for out in outs]


def _lower(context: Any, *arrays: Any, of: Swappable, settings: Any) -> Any:
    for platform in context.platforms or context.module_context.platforms:
        if not of.runs_on(_backend.value, platform):
            raise ValueError(f"`{of.name}` in `{_backend.value}` cannot run on {platform}.")
    return mlir.lower_fun(functools.partial(of.chosen(), settings))(context, *arrays)


def _batch(arrays: Arrays, dims: Sequence[Any], **params: Any) -> tuple[Arrays, list[int]]:
    size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
    arrays = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, dims, strict=True)
    ]
    outs = swappable_p.bind(*arrays, **params)
    return outs, [0] * len(outs)


def _jvp(arrays: Arrays, tangents: Arrays, *, of: Swappable, settings: Any) -> Any:
    """Return the results and their tangents, computed with JAX's implementation.

    This is right for every backend, because all implementations compute the same values.
    """
    tangents = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(lambda *xs: list(of.fn(settings, *xs)), tuple(arrays), tuple(tangents))


swappable_p.def_impl(lambda *arrays, of, settings: list(of.chosen()(settings, *arrays)))
swappable_p.def_abstract_eval(_abstract)
mlir.register_lowering(swappable_p, _lower)
batching.primitive_batchers[swappable_p] = _batch
ad.primitive_jvps[swappable_p] = _jvp
