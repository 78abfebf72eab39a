"""Sliced: several instances on each GPU, each of them a process on a slice of it.

    slice 0 of gpu:0: [ env act learn ]  N/4 environments
    slice 1 of gpu:0: [ env act learn ]  N/4 environments     `averaged`: the mean over slices,
    slice 0 of gpu:1: [ env act learn ]  N/4 environments     on the GPU where it can be
    slice 1 of gpu:1: [ env act learn ]  N/4 environments

A small program leaves most of a GPU idle, and several at once fill it. Colocated slices each run
the whole loop. Dedicated slices either step and act, or learn: this is `actor_learner` on slices,
by default with nobody waiting. Wang et al. 2022 (GMI-DRL): https://arxiv.org/abs/2206.08482
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
"""The flag with which XLA runs whole loops on the GPU. Without it, a small program waits for the
host to launch each kernel."""


def about_search(algorithm: Algorithm, cluster: Cluster) -> dict[str, Any]:
    """Return all that the outcome of a search depends on, except the values that it tries."""
    driver = Path("/sys/module/nvidia/version")
    fields = describe(algorithm)
    return {
        "devices": [device.kind for device in cluster.devices],
        # The kind of a CPU device is always `cpu`, so its model is named here.
        "cores": [cluster.cores, processor()] if cluster.devices[0].id.is_host else [],
        "driver": driver.read_text().strip() if driver.is_file() else "",
        "jax": jax.__version__,
        "algorithm": {k: x for k, x in fields.items() if k not in ("num_envs", "env_steps")},
    }


def best_point(algorithm: Algorithm, cluster: Cluster, devices: int | None) -> Point:
    """Return the best way to cut the devices of this cluster, as found by an earlier search.

    Raise if no search was made for this algorithm with the same settings on such a cluster.
    """
    outcome = Found.load(about_search(algorithm, cluster))
    if outcome is None:
        flags = f"--search --devices {devices}" if devices else "--search"
        raise PlanError(
            f"there was no search yet for {type(algorithm).__name__} with these settings on "
            f"{cluster}: first run `hocket plan ALGORITHM {flags}` with the same flags of the "
            f"algorithm."
        )
    return outcome.best.point


@strategy
def sliced(
    graph: Graph, cluster: Cluster, *, slices: int = 2, share: int | None = None,
    devices: int | None = None, cut: str = "auto", dedicated: bool = False, learners: int = 1,
    lag: Lag = FREE, max_age: int | None = None, batch: int = 1, direct: bool | None = None,
    reduce: str = AUTO, command_buffers: bool = False, search: bool = False, backend: str = "jax",
) -> Plan:  # fmt: skip
    """Run several instances on each device, each of them on a slice of the device.

    Every device, or each of the first `devices`, is cut into `slices`, and each slice may use at
    most `share` percent of its device. `cut` is the way to cut a device: `mps`, `shared` (processes
    that take turns), `mig` or `cpu`; by default the best one here. `reduce` is the way to average
    between slices: `shm`, `ipc`, `nccl`, `hier` or your own `file.py:NAME`; by default the one that
    measures fastest.

    With `dedicated` the last slice learns and the others act. By default nobody waits: in each
    iteration the learner takes `batch` samples, from any of the acting slices. With `lag=1` actors
    and learners wait for each other, and several `learners` are allowed: the last slices of each
    device. `direct` keeps messages on the GPU, by default wherever that works. `search` uses the
    slices, share and environments that `hocket plan ... --search` found best.
    """
    asked, cluster = graph.num_envs, cluster.first(devices, "sliced")
    if command_buffers and cluster.devices[0].id.is_host:
        raise PlanError(
            f"command buffers are for GPUs, and these are slices of {cluster}: leave "
            f"`command_buffers` out."
        )
    if not dedicated:
        _refuse_idle(
            "is for dedicated slices: add dedicated=true, or leave it out", learners=learners != 1,
            lag=lag != FREE, max_age=max_age is not None, batch=batch != 1,
            direct=direct is not None,
        )  # fmt: skip
    elif lag == FREE and learners > 1:
        raise PlanError(
            f"learners={learners}, but with lag=free only one slice can learn: use lag=1, or leave "
            f"`learners` out."
        )
    if search:
        _refuse_idle(
            "is chosen by the search: leave it out, or leave out `search`", slices=slices != 2,
            cut=cut != "auto", share=share is not None, dedicated=dedicated,
            command_buffers=command_buffers,
        )  # fmt: skip
    best = best_point(graph.algorithm, cluster, devices) if search else None
    words, notes = "", ()
    if best:
        slices, share, command_buffers = best.instances, best.share, best.command_buffers
        words = in_words(
            sliced, slices=slices, share=share, devices=devices, reduce=reduce,
            command_buffers=command_buffers, backend=backend,
        )  # fmt: skip
        graph = graph.at(best.instances * best.envs * len(cluster.devices))
        instead = f", instead of {asked:,} environments" if asked != graph.num_envs else ""
        notes = (f"the best that a search found here: {best}{instead}",)
    parts = [part for device in cluster.devices for part in split(device, slices, share, cut)]
    notes = (*dict.fromkeys(part.note for part in parts if part.note), *notes)
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
        graph, places, **how, launch=PROCESSES, notes=notes, words=words,
        compiler_flags=COMMAND_BUFFERS if command_buffers else "",
    )  # fmt: skip
    return made if reduce == AUTO else _averaging_by(made, reduce)


def _apart(
    parts: Sequence[Slice], learners: int, notes: Sequence[str]
) -> tuple[list[Slice], list[Slice]]:
    """Divide the slices: the `learners` slices with the highest indices learn, the others act."""
    if not 1 <= learners < len(parts):
        raise PlanError(
            f"learners={learners} of {len(parts)} dedicated slices: at least 1 must learn, and at "
            f"least 1 must act. Use more `slices`, or other `learners`. {'; '.join(notes)}".strip()
        )
    last = sorted(parts, key=lambda part: part.index)[-learners:]
    return [part for part in parts if part not in last], [part for part in parts if part in last]


def _averaging_by(made: Plan, reduce: str) -> Plan:
    """Return the plan with `reduce` as its way to average."""
    if not made.averaging:
        raise PlanError(f"nothing averages here, so reduce={reduce} has no effect: leave it out.")
    return replace(made, means={place: Mean(way=reduce) for place in sorted(made.averaging)})


def _refuse_idle(why: str, **given: bool) -> None:
    """Refuse options that were given but have no effect."""
    for name, is_given in given.items():
        if is_given:
            raise PlanError(f"the option `{name}` of `sliced` {why}.")
