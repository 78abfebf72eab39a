"""A service keeps a part of the state outside of the program, for host functions to work on.

The program has a ticket instead, which goes into every such function and comes out of those that
change something, so that they happen in their order. Where a state is looked at from outside, in a
checkpoint say, it has the whole thing again, whoever kept it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from hocket.errors import PlanError

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Serving:
    """How a plan has its services."""

    carrier: str = "near"
    """How instances reach them: `near` is by a call in one process, else as `shm`."""
    shards: int = 1
    """Into how many parts each is divided."""
    prefetch: int = 0
    """How many answers may be fetched before they are asked for."""


class Service(Protocol):
    """What a program says of a service: a frozen value with a hash and a short `repr`."""

    @property
    def name(self) -> str: ...

    def specs(self) -> Any:
        """The shapes and dtypes of all that it keeps, as a state without it has that."""

    def check(self, how: Serving, given: Sequence[Shapes] = ()) -> None:
        """Refuse what it cannot do, before anything starts.

        `given` are the arguments of the functions that only give it something, each as one
        instance calls it.
        """

    def about(self, how: Serving) -> str:
        """What it is, for people."""
        ...

    def start(self, how: Serving) -> LiveService: ...


class LiveService(Protocol):
    """A service at work, in the process that began it."""

    def load(self, content: Any) -> None:
        """Keep this from now on; None: nothing, as in the beginning."""

    def content(self) -> Any:
        """All that it keeps, as arrays; asked while nobody uses it."""

    def addresses(self) -> Sequence[str]:
        """Where other processes find it, since the last `load`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class At:
    """Where a host function finds its service."""

    service: LiveService | Sequence[str]
    """Itself, or in another process where it is found."""
    how: Serving
    member: int = 0
    """Which of the instances that use it this one is."""
    in_order: bool = True
    """Whether calls are in the order of one program, so that each ticket is a number."""


class Kept(PlanError, AttributeError):
    """Something asks for what a service keeps."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Served:
    """What a state has of something that a service keeps."""

    ticket: Array
    by: Service = field(metadata={"static": True})

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Kept(
            f"under this plan a service keeps the {self.by.name}, so that `{name}` of it is not "
            f"known to the program: only the functions of the {self.by.name} may use it."
        )


def ticket_for(service: Service) -> Served:
    """What a state begins with, where it is served."""
    return Served(jnp.zeros((), jnp.uint32), service)


_served: ContextVar[bool] = ContextVar("served", default=False)


def is_served() -> bool:
    """Whether services keep what they can keep of the state that is being made."""
    return _served.get()


@contextmanager
def served_state(served: bool = True) -> Iterator[None]:
    """Within, a state is made whose parts are kept by services where they can be."""
    token = _served.set(served)
    try:
        yield
    finally:
        _served.reset(token)


def services(state: Any) -> list[Service]:
    """The services of a state, each once."""
    return list(dict.fromkeys(x.by for x in parts(state) if isinstance(x, Served)))


def whole_specs(state: Any) -> Any:
    """The shapes and dtypes of a state as it is seen from outside."""
    return jax.tree.map(
        lambda x: x.by.specs() if isinstance(x, Served) else x, state, is_leaf=_is_served
    )


def parts(state: Any) -> list[Any]:
    """The leaves of a state, and what services keep of it each as one."""
    return jax.tree.leaves(state, is_leaf=_is_served)


def _is_served(x: Any) -> bool:
    return isinstance(x, Served)
