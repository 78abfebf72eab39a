"""The services of a run. Each is started once, and all instances use it.

A service keeps a part of the state outside of the compiled programs. In the programs a small array,
the ticket, stands for that part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from hocket.core.plan.data import Plan
from hocket.core.program.service import (
    At,
    LiveService,
    Served,
    Service,
    Serving,
    services,
    ticket_for,
)


class Services:
    """The services of a run, started by `load`."""

    def __init__(self, plan: Plan) -> None:
        self._state, self._how = plan.graph.state, plan.serving
        self._in_order = plan.free is None
        self._live: dict[Service, LiveService] = {}
        self._last: dict[Service, Any] = {}

    def load(self, state: Any) -> Any:
        """Give each service its part of a state. Return the state with a ticket for each such part.

        A ticket is a small array that stands for the part in compiled programs.
        """

        def keep(mine: Any, x: Any) -> Any:
            if not isinstance(mine, Served):
                return x
            if mine.by not in self._live:
                self._live[mine.by] = mine.by.start(self._how)
            # A saved state has the content itself. When a run begins anew, `x` is only a ticket
            # (`Served`), and the service begins empty.
            self._live[mine.by].load(None if isinstance(x, Served) else x)
            return ticket_for(mine.by)

        return jax.tree.map(keep, self._state, state, is_leaf=_is_served) if self else state

    def whole(self, state: Any) -> Any:
        """Undo `load`: return the state as users see it.

        Each ticket is replaced by what its service keeps.
        """

        def content(x: Any) -> Any:
            if not isinstance(x, Served):
                return x
            return self._live[x.by].content() if x.by in self._live else self._last[x.by]

        return jax.tree.map(content, state, is_leaf=_is_served) if self else state

    def at(self, member: int) -> Callable[[Service], At]:
        """Return the function by which an instance in this process finds a service."""
        return lambda service: At(self._live[service], self._how, member, self._in_order)

    def elsewhere(self, member: int) -> Callable[[Service], At]:
        """Return a picklable function by which an instance in another process finds a service."""
        addresses = {service.name: live.addresses() for service, live in self._live.items()}
        return partial(_at_address, addresses, self._how, member)

    def close(self, *, keep: bool = False) -> None:
        """End the services. With `keep`, keep their last content, so that `whole` still works."""
        while self._live:
            service, live = self._live.popitem()
            if keep:
                self._last[service] = live.content()
            live.close()

    def __bool__(self) -> bool:
        return bool(services(self._state))


def _at_address(
    addresses: Mapping[str, Sequence[str]], how: Serving, member: int, service: Service
) -> At:
    return At(addresses[service.name], how, member)


def _is_served(x: Any) -> bool:
    return isinstance(x, Served)
