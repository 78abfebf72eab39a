"""Fragments: named pure functions with a role, the units that a plan places."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, overload

import jax
from jax import lax

from hocket.core.program.context import setting
from hocket.errors import unknown

ROLES = ("env", "act", "learn", "gradient", "replay")

_MARK = "hocket"
_exact: ContextVar[bool] = ContextVar("exact", default=False)
_role: ContextVar[str] = ContextVar("role", default="")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Label:
    """The name and role of a fragment. `str(label)` is the name of its call in a traced program."""

    name: str
    role: str

    def __str__(self) -> str:
        return f"{_MARK}.{self.role}.{self.name}"


def read_label(call_name: str) -> Label | None:
    """Return the label in the name of a traced call; None if the call is no fragment."""
    mark, _, rest = call_name.partition(".")
    role, _, name = rest.partition(".")
    return Label(name, role) if mark == _MARK and role in ROLES else None


def exact_fragments(exact: bool = True) -> AbstractContextManager[None]:
    """Inside this context, trace fragments with barriers at their edges.

    XLA then compiles the same pieces whether a program is fused or split, so the numbers are the
    same bit for bit. Without barriers it may fuse across a fragment's edge, which is about 1 %
    faster on a GPU.
    """
    return setting(_exact, exact)


class _Decorator(Protocol):
    def __call__(self, fn: F, /) -> F: ...


def current_role() -> str:
    """Return the role of the fragment that is being traced, for names of kernels; "" in glue."""
    return _role.get()


@overload
def fragment(fn: F, /) -> F: ...
@overload
def fragment(*, role: str | None = None, name: str | None = None) -> _Decorator: ...


def fragment(fn: Any = None, /, *, role: str | None = None, name: str | None = None) -> Any:
    """Mark a pure function or method as a fragment. The mark does not change what it computes.

    The role is the kind of work (`env`, `act`, `learn`, `gradient`, `replay`) by which strategies
    place it. Without one, it is the function's own name if that is a role, else `learn`. A fragment
    called inside another is part of the outer one.

        @fragment(role="act")
        def choose(self, params, obs, key): ...
    """
    if fn is None:
        return functools.partial(_Fragment, role=role, name=name)
    return _Fragment(fn, role=role, name=name)


class _Fragment:
    """The callable that `fragment` makes: a descriptor, so that methods bind."""

    def __init__(self, fn: Callable[..., Any], *, role: str | None, name: str | None) -> None:
        functools.update_wrapper(cast(Any, self), fn)
        self.fn = fn
        name = name or fn.__name__
        role = role or (name if name in ROLES else "learn")
        if role not in ROLES:
            raise ValueError(unknown("role", role, ROLES, where=f"of the fragment `{name}`"))
        self.label = Label(name, role)

    def __get__(self, owner: Any, _type: type | None = None) -> Any:
        # `owner` is closed over and not an argument: it may hold arrays, and then has no hash.
        bound = functools.partial(self.fn, owner)
        return self if owner is None else functools.partial(_named_call, self.label, bound)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _named_call(self.label, self.fn, *args, **kwargs)


def _named_call(label: Label, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    def body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with setting(_role, _role.get() or label.role):  # if nested, the outermost's role
            if not _exact.get():
                return fn(*args, **kwargs)
            args, kwargs = lax.optimization_barrier((args, kwargs))
            return lax.optimization_barrier(fn(*args, **kwargs))

    body.__name__ = body.__qualname__ = str(label)
    return jax.jit(body)(args, kwargs)
