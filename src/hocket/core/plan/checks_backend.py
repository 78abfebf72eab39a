"""The checks of a place's backend, such as `cpp`, which replaces JAX's code of some functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hocket.core.plan.device_id import DeviceId
from hocket.core.program.backend import JAX, KNOWN, Swappable
from hocket.errors import PlanError, unknown


def check_backend(
    name: str, functions: Iterable[Swappable], devices: Sequence[DeviceId], on: str
) -> None:
    """Refuse a backend that cannot run the swappable functions of the place called `on`.

    `devices` are the devices of one instance, or an empty list if JAX chooses the device.
    """
    if name == JAX:
        return
    if name not in KNOWN:
        raise PlanError(unknown("backend", name, KNOWN, where=f"of the place `{on}`"))
    functions = sorted(functions, key=str)
    ours = [fn for fn in functions if name in fn.backends]
    if not ours:
        has = "; ".join(f"`{fn}` has {', '.join(fn.backends)}" for fn in functions)
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
            f"`{on}`, and XLA cannot split a function implemented in `{name}` among them: each "
            f"device would step all environments. Use replicas, one for each device "
            f"(`data_parallel`), or leave out `backend={name!r}`."
        )
