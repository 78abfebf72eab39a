"""Sliced: several instances on each GPU, every one a process on a slice of it.

    slice 0 of gpu:0: [ env act learn ]  N/4 environments
    slice 1 of gpu:0: [ env act learn ]  N/4 environments     `averaged`: the mean over slices,
    slice 0 of gpu:1: [ env act learn ]  N/4 environments     on the GPU where it can be
    slice 1 of gpu:1: [ env act learn ]  N/4 environments

Colocated, the whole loop runs in each slice. Dedicated, some slices step and act and one or
more learn: `actor_learner` on slices, by default with nobody waiting. Small programs leave most of
a GPU idle; several at once fill it. Wang et al. 2022 (GMI-DRL): https://arxiv.org/abs/2206.08482
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from hocket.cluster import Cluster
from hocket.cluster.devices import processor
from hocket.cluster.search import Found, Point
from hocket.cluster.slices import Slice, split
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Channel, Mean, Place, Plan
from hocket.core.program.algorithm import Algorithm
from hocket.core.program.describe import describe
from hocket.core.program.fragment import ROLES
from hocket.errors import PlanError
from hocket.strategies.sharing import PROCESSES, PlanArguments, sampling
from hocket.strategies.strategy import FREE, Lag, in_words, strategy

AUTO = "auto"
COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer=+WHILE"
"""Loops run on the GPU without the host: their launches are what a small program waits for."""


def about_search(algorithm: Algorithm, cluster: Cluster) -> dict[str, Any]:
    """What the outcome of a search depends on, beside what is searched for."""
    driver = Path("/sys/module/nvidia/version")
    fields = describe(algorithm)
    return {
        "devices": [device.kind for device in cluster.devices],
        # The kind of a CPU device is `cpu`, whatever the machine.
        "cores": [cluster.cores, processor()] if cluster.devices[0].id.is_host else [],
        "driver": driver.read_text().strip() if driver.is_file() else "",
        "jax": jax.__version__,
        "algorithm": {k: x for k, x in fields.items() if k not in ("num_envs", "env_steps")},
    }


def found_best(algorithm: Algorithm, cluster: Cluster, devices: int | None = None) -> Point:
    """What a search found before for this algorithm on (the first `devices` of) this machine."""
    found = Found.load(about_search(algorithm, cluster))
    if found is None:
        flags = f"--search --devices {devices}" if devices else "--search"
        raise PlanError(
            f"nothing was searched for {type(algorithm).__name__} with these settings on {cluster} "
            f"yet: run `hocket plan ALGORITHM {flags}` with the same flags of the algorithm first."
        )
    return found.best.point


@strategy
def sliced(
    graph: Graph, cluster: Cluster, *, slices: int = 2, share: int | None = None,
    devices: int | None = None, cut: str = "auto", dedicated: bool = False, learners: int = 1,
    lag: Lag = FREE, max_age: int | None = None, batch: int = 1, direct: bool | None = None,
    reduce: str = AUTO, command_buffers: bool = False, search: bool = False, backend: str = "jax",
) -> Plan:  # fmt: skip
    """`slices` of every device, or of the first `devices`, each with at most `share` percent.

    `cut` says how: `mps`, `shared` (processes that take turns), `mig`, `cpu`; by default as it goes
    best here. `reduce` is how `averaged` goes between them: `shm`, `ipc`, `nccl`, `hier`, or one of
    your own, `file.py:NAME`; by default the fastest, which is measured. `dedicated`: the last slice
    learns, from the samples of any `batch` of the others, which act. Where they wait (`lag=1`)
    several `learners` can, the last slices of each device. `direct` is whether what crosses stays
    on the GPU, by default where it can. With `search`, slices, share and environments are those
    that `hocket plan ... --search` found best.
    """
    asked, cluster = graph.num_envs, cluster.first(devices, "sliced")
    if command_buffers and cluster.devices[0].id.is_host:
        raise PlanError(f"command buffers are for GPUs, and these are slices of {cluster}.")
    if not dedicated:
        _refuse_idle(
            "is for dedicated slices: add dedicated=true, or leave it out", learners=learners != 1,
            lag=lag != FREE, max_age=max_age is not None, batch=batch != 1,
            direct=direct is not None,
        )  # fmt: skip
    elif lag == FREE and learners > 1:
        raise PlanError(f"with lag=free one slice learns, and learners={learners}: use lag=1.")
    if search:
        _refuse_idle(
            "is not chosen where a search has: leave it out, or `search`", slices=slices != 2,
            cut=cut != "auto", share=share is not None, dedicated=dedicated,
            command_buffers=command_buffers,
        )  # fmt: skip
    found = found_best(graph.algorithm, cluster, devices) if search else None
    words = ""
    if found:
        slices, share, command_buffers = found.instances, found.share, found.command_buffers
        words = in_words(
            sliced, slices=slices, share=share, devices=devices, reduce=reduce,
            command_buffers=command_buffers, backend=backend,
        )  # fmt: skip
        graph = graph.at(found.instances * found.envs * len(cluster.devices))
    parts = [part for device in cluster.devices for part in split(device, slices, share, cut)]
    flags = COMMAND_BUFFERS if command_buffers else ""
    notes = tuple(dict.fromkeys(part.note for part in parts if part.note))
    if found:
        instead = f", in place of {asked:,} environments" if asked != graph.num_envs else ""
        notes += (f"the best that was found here: {found}{instead}",)
    if dedicated:
        acting, learning = _apart(parts, learners, notes)
        places = (
            Place("actor", ("env", "act"), acting, replicas=len(acting), backend=backend),
            Place("learner", ("learn", "gradient", "replay"), learning, replicas=len(learning)),
        )
        how = sampling("actor", "learner", lag, max_age, len(acting), batch)
        named = {None: "", True: "one_gpu", False: "shared_memory"}[direct]
        usual = how.get("channels", {"actor -> learner": Channel()})
        how["channels"] = {name: replace(x, transport=named) for name, x in usual.items()}
    else:
        places = (Place("slice", ROLES, parts, replicas=len(parts), backend=backend),)
        how = PlanArguments()
    made = Plan(
        graph, places, **how, launch=PROCESSES, compiler_flags=flags, notes=notes, words=words
    )
    return made if reduce == AUTO else _averaging_by(made, reduce)


def _apart(
    parts: Sequence[Slice], learners: int, notes: Sequence[str]
) -> tuple[list[Slice], list[Slice]]:
    """The slices that act, and those that learn: the last of each device, as many as are wanted."""
    if not 1 <= learners < len(parts):
        raise PlanError(
            f"learners={learners} of {len(parts)} dedicated slices: at least 1 learns and 1 acts. "
            f"Use more `slices`, or other `learners`. {'; '.join(notes)}".strip()
        )
    last = sorted(parts, key=lambda part: part.index)[-learners:]
    return [part for part in parts if part not in last], [part for part in parts if part in last]


def _averaging_by(made: Plan, reduce: str) -> Plan:
    """The same plan, in which whoever averages does it in this way."""
    if not made.averaging:
        raise PlanError(f"nothing averages here, so reduce={reduce} has no effect: leave it out.")
    return replace(made, means={place: Mean(way=reduce) for place in sorted(made.averaging)})


def _refuse_idle(why: str, **given: bool) -> None:
    """Refuse options that were given and would do nothing."""
    for name, is_given in given.items():
        if is_given:
            raise PlanError(f"the option `{name}` of `sliced` {why}.")
