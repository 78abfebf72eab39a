"""A replay as algorithms use it, whether arrays of the program hold its rows or a service does.

    replay = init(row, capacity=65_536)                  # shaped like one row, any pytree
    replay = insert(replay, rows, real)                  # with the highest priority so far
    keys, batch = sample(replay, uniforms, minimum=1_000)
    replay, counts = reprioritize(replay, keys, priority)

Which of the two it is, a plan decides; the numbers are the same. Each call stands alone in a
fragment of role `replay`, since that is what a service can take over.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from hocket.core.program.host import call_host
from hocket.core.program.service import Served, is_served, ticket_for
from hocket.replay import device
from hocket.replay.calls import Insert, Reprioritize, Sample
from hocket.replay.device import Draw, Replay
from hocket.replay.service import ReplayService
from hocket.replay.store.table import store


def init(row: Any, capacity: int, name: str = "replay") -> Replay | Served:
    """An empty replay of rows like `row`; see `device.init`. Two of them need two names."""
    if not is_served():
        return device.init(row, capacity)
    device.check_capacity(capacity)
    store()  # or it says what to do, before anything starts
    return ticket_for(ReplayService.of(row, capacity, name))


def insert(replay: Replay | Served, rows: Any, real: Array, priority: Array | None = None) -> Any:
    """Write the rows where `real` is true, over the oldest ones; see `device.insert`."""
    if priority is not None and priority.shape != real.shape:
        raise ValueError(
            f"a priority is given for each row: `real` is {list(real.shape)}, and `priority` "
            f"{list(priority.shape)}."
        )
    if not isinstance(replay, Served):
        return device.insert(replay, rows, real, priority)
    service = _service(replay)
    device.check_rows(real.size, service.capacity)
    _check_row(service, rows, real)
    rated = () if priority is None else (priority,)
    call = Insert(service, rated=bool(rated))
    (ticket,) = call_host(call, replay.ticket, real, *rated, *jax.tree.leaves(rows))
    return Served(ticket, service)


def sample(replay: Replay | Served, uniforms: Array, *, minimum: int = 1) -> tuple[Array, Draw]:
    """Draw as many rows as there are `uniforms`: `(keys, batch)`; see `device.sample`."""
    if not isinstance(replay, Served):
        return device.sample(replay, uniforms, minimum=minimum)
    service = _service(replay)
    device.check_minimum(minimum, service.capacity)
    found = call_host(Sample(service, minimum=minimum), replay.ticket, uniforms)
    keys, probability, ready, *columns = found
    return keys, Draw(jax.tree.unflatten(service.tree, columns), probability, ready)


def reprioritize(
    replay: Replay | Served, keys: Array, priority: Array
) -> tuple[Any, dict[str, Array]]:
    """Give the rows of `keys` new priorities; see `device.reprioritize`."""
    if not isinstance(replay, Served):
        return device.reprioritize(replay, keys, priority)
    service = _service(replay)
    ticket, stale, bad = call_host(Reprioritize(service), replay.ticket, keys, priority)
    return Served(ticket, service), {"stale_keys": stale, "bad_priorities": bad}


def _service(replay: Served) -> ReplayService:
    if not isinstance(replay.by, ReplayService):
        raise TypeError(f"this is the {replay.by.name}, and no replay.")
    return replay.by


def _check_row(service: ReplayService, rows: Any, real: Array) -> None:
    found = jax.tree.map(lambda x: (tuple(x.shape[real.ndim :]), x.dtype), rows)
    wanted = jax.tree.map(lambda x: (tuple(x.shape), x.dtype), service.row())
    lead = all(x.shape[: real.ndim] == real.shape for x in jax.tree.leaves(rows))
    if jax.tree.structure(rows) != service.tree or found != wanted or not lead:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(rows))
        raise ValueError(
            f"the {service.name} has rows of {service.schema}, and `insert` was given {shapes} "
            f"where `real` is {list(real.shape)}: the leading axes are those of `real`."
        )
