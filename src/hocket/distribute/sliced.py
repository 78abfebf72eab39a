"""Sliced: several instances on each GPU, every one a process on a slice of it.

    slice 0 of gpu:0: [ env act learn ]  N/4 environments
    slice 1 of gpu:0: [ env act learn ]  N/4 environments     `averaged`: the mean over slices,
    slice 0 of gpu:1: [ env act learn ]  N/4 environments     on the GPU where it can be
    slice 1 of gpu:1: [ env act learn ]  N/4 environments

Colocated, the whole loop runs in each slice. Dedicated, some slices step and act, one learns, and
nobody waits: `actor_learner` with `lag=free`, on slices. Small programs leave most of a GPU idle;
several at once fill it. Wang et al. 2022 (GMI-DRL): https://arxiv.org/abs/2206.08482
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.fragment import ROLES
from hocket.core.graph import Graph
from hocket.core.plan import FREE, Channel, Place, Plan
from hocket.distribute.strategy import Lag, sample_channels, strategy
from hocket.errors import PlanError

COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer=+WHILE"
"""Loops run on the GPU without the host: their launches are what a small program waits for."""


@strategy
def sliced(
    graph: Graph, cluster: Cluster, *, slices: int = 2, share: int | None = None,
    cut: str = "auto", dedicated: bool = False, lag: Lag = FREE, max_age: int | None = None,
    reduce: str = "auto", command_buffers: bool = False, backend: str = "jax",
) -> Plan:  # fmt: skip
    """`slices` of every device, each with at most `share` percent of it.

    `cut` says how: `mps`, `shared` (processes that take turns), `mig`, `cpu`; by default as it goes
    best here. `reduce` is how `averaged` goes between them: `shm`, `ipc`, `nccl`, `hier`; by
    default the fastest, which is measured. `dedicated`: one slice learns, the others act.
    """
    parts = [part for device in cluster.devices for part in device.split(slices, share, cut)]
    flags = COMMAND_BUFFERS if command_buffers else ""
    notes = tuple(dict.fromkeys(part.note for part in parts if part.note))
    if dedicated:
        if len(parts) < 2:
            raise PlanError(f"dedicated slices are 2 or more, and there is {len(parts)}: {notes}.")
        *acting, learning = parts
        places = (
            Place("actor", ("env", "act"), acting, replicas=len(acting), backend=backend),
            Place("learner", ("learn", "gradient", "replay"), [learning]),
        )
        channels = sample_channels("actor", "learner", lag, max_age, len(acting))
    else:
        places = (Place("slice", ROLES, parts, replicas=len(parts), backend=backend),)
        channels = {"slice -> slice": Channel(reduce=reduce)} if len(parts) > 1 else {}
    return Plan(graph, places, channels, launch="processes", xla_flags=flags, notes=notes)
