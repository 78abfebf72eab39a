"""The processes that a plan needs, and how they share the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import jax

from hocket.cluster.slices import Slices, changed, run_as_one
from hocket.core.plan.data import Place, Plan
from hocket.runtime.launch import Seat
from hocket.runtime.observe.status import names
from hocket.system.cores import usable_cores
from hocket.system.platforms import HOST


def seats_of(plan: Plan) -> list[Seat]:
    """Return the seats of a plan: one for each instance, in the order of `names`, or each node."""
    if plan.launch.nodes:
        return _nodes(plan)
    return [
        Seat(f"{place}/{index}", (f"{place}/{index}",), spot.share(index), _cores(spot))
        for place, index in names(plan)
        for spot in [plan.place(place)]
    ]


def _nodes(plan: Plan) -> list[Seat]:
    """Return a seat for each node that has instances of the plan."""
    seats: dict[str, Seat] = {}
    for place, index in names(plan):
        node, devices = plan.place(place).node(index), plan.place(place).share(index)
        seat = seats.get(node, Seat(node, (), node=node))
        seats[node] = replace(
            seat,
            instances=(*seat.instances, f"{place}/{index}"),
            devices=tuple(dict.fromkeys((*seat.devices, *devices))),
        )
    return list(seats.values())


def why_not_there(plan: Plan, nodes: Sequence[str]) -> str:
    """Return why a cluster with these nodes cannot carry out a plan; "" if it can."""
    if sys.platform != "linux":
        return "it needs Linux."
    used = {place.node(i) for place in plan.places for i in range(place.replicas)}
    if unknown := sorted(used - {*nodes}):
        return (
            f"the plan names the node `{unknown[0]}`, and its nodes are {', '.join(nodes)}. Make "
            f"the plan for this cluster: `cluster=`."
        )
    return ""


def settings_for_nodes(plan: Plan, place: str, index: int) -> dict[str, str]:
    """Return the environment variables that an instance on another node takes over from the run.

    These decide its numbers. Others, such as paths, mean something else on another machine.
    """
    devices = plan.place(place).share(index)
    flags = f"{os.environ.get('XLA_FLAGS', '')} {plan.compiler_flags}".split()
    settings = {"XLA_FLAGS": " ".join(flag for flag in flags if "/" not in flag)}
    on_host = bool(devices) and all(device.is_host for device in devices)
    return settings | ({"JAX_PLATFORMS": HOST} if on_host else {})


def environment_of(plan: Plan, seat: Seat, slices: Slices) -> dict[str, str]:
    """Return the complete environment of the process of one seat."""
    # Several processes may share a GPU, so each takes memory only as it needs it. The user's own
    # settings override these.
    defaults = {"PJRT_NPROC": str(seat.cores), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    # A process that computes on the host alone does not even open the accelerator.
    on_host = bool(seat.devices) and all(device.is_host for device in seat.devices)
    environment = {**defaults, **os.environ, **({"JAX_PLATFORMS": HOST} if on_host else {})}
    for device in seat.devices:
        environment = changed(environment, slices.env(device))
    if plan.compiler_flags:
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} {plan.compiler_flags}".strip()
    return environment


def uses_accelerator(plan: Plan) -> bool:
    """Return True if some instance of the plan may compute on a device other than the host."""
    return any(
        not all(device.is_host for device in place.on) if place.on
        else jax.default_backend() != HOST
        for place in plan.places
    )  # fmt: skip


def others_on_gpu(plan: Plan, name: str) -> str:
    """Return a hint that another instance on the same GPU may have caused an instance's error.

    Only slices of a GPU for which `run_as_one` is True share faults. If the instance shares none
    with another, return "".
    """
    devices = {f"{place}/{i}": plan.place(place).share(i) for place, i in names(plan)}
    mine = {device.whole for device in devices[name] if run_as_one(device)}
    others = [n for n, on in devices.items() if n != name and mine & {x.whole for x in on}]
    shared = f"it shares {', '.join(sorted(map(str, mine)))} with {', '.join(others)}"
    return f"({shared}: a fault of one client of MPS reaches all.)" if others else ""


def _cores(place: Place) -> int:
    # Replicas of one place are busy at the same time, so each gets a share of the cores for XLA's
    # threads: two replicas of PPO on two cores ran at 1.49 times the speed of one core with that,
    # and at 1.13 times without.
    # Different places are often busy in turn, so each place gets all cores: a learner with half of
    # them was half as fast whenever the run waited for it.
    return max(1, usable_cores() // place.replicas)
