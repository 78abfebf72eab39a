"""The replay that algorithms call. Its rows are in arrays of the program, or kept by a service.

    replay = init(row, capacity=65_536)                  # shaped like one row, any pytree
    replay = insert(replay, rows, real)                  # at the highest priority so far
    keys, batch = sample(replay, uniforms, minimum=1_000)
    replay, counts = reprioritize(replay, keys, priority)

The plan decides who keeps the rows. The numbers are the same either way, unless the service has
several shards or draws batches ahead. Put each call alone into a fragment with the role `replay`,
because a service can only take over a whole fragment.
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
    """Make an empty replay of rows like `row`; see `device.init`.

    Give each replay of a program a `name` of its own.
    """
    if not is_served():
        return device.init(row, capacity)
    device.check_capacity(capacity)
    store()  # if the native library is missing, this raises now and says what to do
    return ticket_for(ReplayService.of(row, capacity, name))


def insert(replay: Replay | Served, rows: Any, real: Array, priority: Array | None = None) -> Any:
    """Insert the rows where `real` is true, over the oldest when full. See `device.insert`."""
    if priority is not None and priority.shape != real.shape:
        raise ValueError(
            f"`insert` takes one priority for each row: `real` has the shape {list(real.shape)}, "
            f"found `priority` of shape {list(priority.shape)}."
        )
    if not isinstance(replay, Served):
        return device.insert(replay, rows, real, priority)
    service = _service(replay)
    device.check_rows(real.size, service.capacity)
    _check_row(service, rows, real)
    given = () if priority is None else (priority,)
    call = Insert(service, rated=bool(given))
    (ticket,) = call_host(call, replay.ticket, real, *given, *jax.tree.leaves(rows))
    return Served(ticket, service)


def sample(replay: Replay | Served, uniforms: Array, *, minimum: int = 1) -> tuple[Array, Draw]:
    """Draw one row for each of `uniforms`; return `(keys, batch)`. See `device.sample`."""
    if not isinstance(replay, Served):
        return device.sample(replay, uniforms, minimum=minimum)
    service = _service(replay)
    device.check_minimum(minimum, service.capacity)
    call = Sample(service, minimum=minimum)
    keys, probability, ready, *columns = call_host(call, replay.ticket, uniforms)
    return keys, Draw(jax.tree.unflatten(service.tree, columns), probability, ready)


def reprioritize(
    replay: Replay | Served, keys: Array, priority: Array
) -> tuple[Any, dict[str, Array]]:
    """Give the rows with these `keys` new priorities; see `device.reprioritize`."""
    if not isinstance(replay, Served):
        return device.reprioritize(replay, keys, priority)
    service = _service(replay)
    ticket, stale, bad = call_host(Reprioritize(service), replay.ticket, keys, priority)
    return Served(ticket, service), {"stale_keys": stale, "bad_priorities": bad}


def _service(replay: Served) -> ReplayService:
    if not isinstance(replay.by, ReplayService):
        raise TypeError(f"expected a replay, found the {replay.by.name}, another kind of service.")
    return replay.by


def _check_row(service: ReplayService, rows: Any, real: Array) -> None:
    given = jax.tree.map(lambda x: (tuple(x.shape[real.ndim :]), x.dtype), rows)
    expected = jax.tree.map(lambda x: (tuple(x.shape), x.dtype), service.row())
    leads = all(x.shape[: real.ndim] == real.shape for x in jax.tree.leaves(rows))
    if jax.tree.structure(rows) != service.tree or given != expected or not leads:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(rows))
        raise ValueError(
            f"rows of the {service.name} have the columns {service.schema}, found {shapes} in "
            f"`insert`, with `real` of shape {list(real.shape)}. Give each column the axes of "
            f"`real` first, then those of one row."
        )
