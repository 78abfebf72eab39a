"""Services. Each keeps a part of the state, such as a replay, outside of the program.

The program holds only a ticket, a number that stands for the content. The service's host functions
take the ticket, and those that change the content return a new one, so the calls have an order. A
state that leaves the program, in a checkpoint for example, has the content in it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from hocket.core.program.context import setting
from hocket.errors import PlanError

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Serving:
    """How a plan runs its services."""

    carrier: str = "near"
    """The carrier of calls to a service: `near` (one process), `shm` (shared memory) or `tcp`."""
    shards: int = 1
    """The number of parts into which each service is divided."""
    prefetch: int = 0
    """How many answers may be fetched ahead, before the program asks for them."""


class Service(Protocol):
    """The declaration of a service in a program: frozen and hashable, with a short `repr`."""

    @property
    def name(self) -> str: ...

    def specs(self) -> Any:
        """Return the content as shapes and dtypes, with the structure that it has in a state."""

    def check(self, how: Serving, given: Sequence[Shapes] = ()) -> None:
        """Refuse settings with which the service cannot run, before anything starts.

        `given` has one entry for each call that writes to the service and reads nothing: the shapes
        of the arguments that one replica passes.
        """

    def about(self, how: Serving) -> str:
        """Return a line about the service, for people."""
        ...

    def start(self, how: Serving) -> LiveService: ...


class LiveService(Protocol):
    """A running service, in the process that started it."""

    def load(self, content: Any) -> None:
        """Replace the content; None empties it."""

    def content(self) -> Any:
        """Return the content as arrays. Call it only while nobody uses the service."""

    def addresses(self) -> Sequence[str]:
        """Return the addresses for other processes. Each `load` may change them."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class At:
    """The way in which one instance reaches the service of a host function."""

    service: LiveService | Sequence[str]
    """The service itself, or its addresses if it runs in another process."""
    how: Serving
    member: int = 0
    """The index of this instance among those that use the service."""
    in_order: bool = True
    """True if calls come in the same order as in a single program. The number in a ticket is then
    the number of changes so far, so a call out of order can be detected."""


class Kept(PlanError, AttributeError):
    """The error when a program reads a part of the state that a service keeps."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Served:
    """The stand-in for a part of a state that a service keeps: a ticket, not the content."""

    ticket: Array
    by: Service = field(metadata={"static": True})

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Kept(
            f"under this plan a service keeps the {self.by.name}, so the program does not have "
            f"its `{name}`: only the functions of the {self.by.name} may use it."
        )


def ticket_for(service: Service) -> Served:
    """Return the first ticket of a service: a number in the state that stands for its content."""
    return Served(jnp.zeros((), jnp.uint32), service)


_served: ContextVar[bool] = ContextVar("served", default=False)


def is_served() -> bool:
    """Return True inside `served_state`, where new states hold tickets, not services' content."""
    return _served.get()


def served_state(served: bool = True) -> AbstractContextManager[None]:
    """Inside this context, make states that hold a ticket for each part that a service can keep.

    The service then has the part's content, and the ticket stands for it in the program.
    """
    return setting(_served, served)


def services(state: Any) -> list[Service]:
    """Return the services of a state, each once."""
    return list(dict.fromkeys(x.by for x in parts(state) if isinstance(x, Served)))


def whole_specs(state: Any) -> Any:
    """Return the shapes and dtypes of a state that has the services' content, not their tickets."""
    return jax.tree.map(
        lambda x: x.by.specs() if isinstance(x, Served) else x, state, is_leaf=_is_served
    )


def parts(state: Any) -> list[Any]:
    """Return the leaves of a state, with each `Served` as one leaf."""
    return jax.tree.leaves(state, is_leaf=_is_served)


def _is_served(x: Any) -> bool:
    return isinstance(x, Served)
