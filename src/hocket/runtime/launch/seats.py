"""Which processes a plan needs, and how each of them shares the machine."""

from __future__ import annotations

import os

import jax

from hocket.cluster.devices import usable_cores
from hocket.cluster.slices import Slices, changed, device_of
from hocket.core.plan.data import Place, Plan
from hocket.runtime.launch import Seat
from hocket.runtime.observe.status import names


def seats_of(plan: Plan) -> list[Seat]:
    """A seat for each instance, in the order of `names`."""
    return [
        Seat(f"{place}/{index}", (f"{place}/{index}",), spot.share(index), _cores(spot))
        for place, index in names(plan)
        for spot in [plan.place(place)]
    ]


def environment_of(plan: Plan, place: Place, index: int, slices: Slices) -> dict[str, str]:
    """The whole environment of the process of one instance."""
    on = place.share(index)
    # Several processes share a GPU: each takes memory as it needs it, not most of it at once.
    usual = {"PJRT_NPROC": str(_cores(place)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    # No accelerator where it computes on none.
    on_cpu = bool(on) and all(device.startswith("cpu:") for device in on)
    environment = {**usual, **os.environ, **({"JAX_PLATFORMS": "cpu"} if on_cpu else {})}
    for device in on:
        environment = changed(environment, slices.env(device))
    if plan.compiler_flags:
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} {plan.compiler_flags}".strip()
    return environment


def computes_on_gpu(plan: Plan) -> bool:
    """Whether an instance computes on a GPU: then it ends after its current program."""
    named = [device for place in plan.places for device in place.on]
    everywhere = all(place.on for place in plan.places)
    return any(device.startswith("gpu:") for device in named) or (
        not everywhere and jax.default_backend() == "gpu"
    )


def company(plan: Plan, name: str) -> str:
    """Who else is on the GPU of an instance, where what becomes of one becomes of all."""
    at = {f"{place}/{i}": plan.place(place).share(i) for place, i in names(plan)}
    mine = {device_of(device) for device in at[name] if "/mps:" in device}
    others = [n for n, on in at.items() if n != name and mine & set(map(device_of, on))]
    shared = f"it shares {', '.join(sorted(mine))} with {', '.join(others)}"
    return f"({shared}: a fault of one client of MPS reaches all.)" if others else ""


def _cores(place: Place) -> int:
    # Replicas of one place are busy at the same time, so they share the cores for XLA's threads:
    # two replicas of PPO on two cores went from 1.13 times one core's speed to 1.49. Places are
    # not: a learner that had half of the cores was half as fast wherever it is what takes the time.
    return max(1, usable_cores() // place.replicas)
