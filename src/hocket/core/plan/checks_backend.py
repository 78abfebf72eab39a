"""Refusals of a place's backend: an implementation beside the JAX one, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hocket.core.plan.device_id import DeviceId
from hocket.core.program.backend import JAX, KNOWN, Swappable
from hocket.errors import PlanError, unknown


def check_backend(
    name: str, found: Iterable[Swappable], devices: Sequence[DeviceId], on: str
) -> None:
    """Refuse a backend that cannot run on a place called `on`.

    `found` are the swappable functions there, and `devices` those of one instance; none where jax
    will choose.
    """
    if name == JAX:
        return
    if name not in KNOWN:
        raise PlanError(unknown("backend", name, KNOWN, where=f"of the place `{on}`"))
    found = sorted(found, key=str)
    ours = [fn for fn in found if name in fn.backends]
    if not ours:
        has = "; ".join(f"`{fn}` has {', '.join(fn.backends)}" for fn in found)
        raise PlanError(
            f"nothing on the place `{on}` is implemented in `{name}`"
            f"{f' ({has})' if has else ''}: leave out `backend={name!r}`."
        )
    for fn in ours:
        for device in devices:
            if not fn.runs_on(name, device.kind):
                raise PlanError(
                    f"`{fn}` is not implemented in `{name}` for {device.kind}, and the place "
                    f"`{on}` is on {device}: leave out `backend={name!r}`, or use other devices."
                )
    if len(devices) > 1:
        raise PlanError(
            f"the devices {', '.join(map(str, devices))} share the environments of the place "
            f"`{on}`, and XLA cannot cut up what is implemented in `{name}`: each would step all "
            f"environments. Use replicas, one for each device (`data_parallel`), or leave out "
            f"`backend={name!r}`."
        )
