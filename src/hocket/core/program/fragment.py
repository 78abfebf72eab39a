"""A fragment is a named pure function with a role: the unit that a plan places."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, overload

import jax
from jax import lax

from hocket.errors import unknown

ROLES = ("env", "act", "learn", "gradient", "replay")

_MARK = "hocket"
_exact: ContextVar[bool] = ContextVar("exact", default=False)
_role: ContextVar[str] = ContextVar("role", default="")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Label:
    """What a traced call says about itself: which fragment it is, and its role."""

    name: str
    role: str

    def __str__(self) -> str:
        return f"{_MARK}.{self.role}.{self.name}"


def read_label(call_name: str) -> Label | None:
    """The label in the name of a traced call, or None where the call is no fragment."""
    mark, _, rest = call_name.partition(".")
    role, _, name = rest.partition(".")
    return Label(name, role) if mark == _MARK and role in ROLES else None


@contextmanager
def exact_fragments(exact: bool = True) -> Iterator[None]:
    """Within, fragments are traced with barriers at their edges.

    XLA then compiles the same pieces whether a program is fused or split: the same numbers bit for
    bit. Without, it may fuse across a fragment's edge: faster by about 1 % on a GPU.
    """
    token = _exact.set(exact)
    try:
        yield
    finally:
        _exact.reset(token)


class _Decorator(Protocol):
    def __call__(self, fn: F, /) -> F: ...


def current_role() -> str:
    """The role of the fragment that is being traced, for the names of kernels; empty in glue."""
    return _role.get()


@overload
def fragment(fn: F, /) -> F: ...
@overload
def fragment(*, role: str | None = None, name: str | None = None) -> _Decorator: ...


def fragment(fn: Any = None, /, *, role: str | None = None, name: str | None = None) -> Any:
    """Mark a pure function or method as a fragment. Inside a program it is only a name.

    The role says which kind of work it is (`env`, `act`, `learn`, `gradient`, `replay`) and so
    where a strategy puts it; by default it is the function's own name if that is a role, else
    `learn`. A fragment called inside another is part of the outer one.

        @fragment(role="act")
        def choose(self, params, obs, key): ...
    """
    if fn is None:
        return functools.partial(_Fragment, role=role, name=name)
    return _Fragment(fn, role=role, name=name)


class _Fragment:
    """The callable that `fragment` makes; a descriptor, so that methods bind."""

    def __init__(self, fn: Callable[..., Any], *, role: str | None, name: str | None) -> None:
        functools.update_wrapper(cast(Any, self), fn)
        self.fn = fn
        name = name or fn.__name__
        role = role or (name if name in ROLES else "learn")
        if role not in ROLES:
            raise ValueError(unknown("role", role, ROLES, where=f"of the fragment `{name}`"))
        self.label = Label(name, role)

    def __get__(self, owner: Any, _type: type | None = None) -> Any:
        return self if owner is None else functools.partial(self._call, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _named_call(self.label, self.fn, args, kwargs)

    def _call(self, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        # `owner` is closed over, never an argument: it may hold arrays, so it has no hash.
        return _named_call(self.label, functools.partial(self.fn, owner), args, kwargs)


def _named_call(
    label: Label, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    def body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        token = _role.set(_role.get() or label.role)  # the outermost one's
        try:
            if not _exact.get():
                return fn(*args, **kwargs)
            args, kwargs = lax.optimization_barrier((args, kwargs))
            return lax.optimization_barrier(fn(*args, **kwargs))
        finally:
            _role.reset(token)

    body.__name__ = body.__qualname__ = str(label)
    return jax.jit(body)(args, kwargs)
