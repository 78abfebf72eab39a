"""Start instances on several nodes that are all this machine, to try out a cluster.

`loopback:N` has the nodes n0, n1, ... with an equal part of the cores each, and no accelerators.
The nodes share nothing: no memory, no settings of a process. Whatever crosses between them goes
through sockets, as between machines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax

from hocket.cluster.devices import Cluster, Device, Node, host_memory, id_of
from hocket.core.plan.data import Launch, Plan
from hocket.runtime.launch import Command, Seat
from hocket.runtime.launch.launchers.processes import ChildMember
from hocket.runtime.launch.seats import why_not_there
from hocket.system.code.origin import HOCKET, is_installed
from hocket.system.cores import CORES, part_of_cores
from hocket.system.platforms import HOST

LAUNCH = Launch("loopback", one_process=False, one_program=False, shares_memory="node", nodes=True)


class Loopback:
    """The launcher of a cluster whose nodes are parts of this machine."""

    def __init__(self, argument: str = "") -> None:
        if not (argument.isdigit() and int(argument) > 0):
            raise ValueError(
                f"`loopback:{argument}` names no cluster: give the number of nodes, as in "
                f"`loopback:2`."
            )
        self._count = int(argument)
        self.launch = replace(LAUNCH, name=f"loopback:{self._count}")

    def nodes(self, seconds: float) -> Sequence[str]:
        return self._names

    def survey(self, seconds: float) -> Cluster:
        memory = host_memory()
        share = memory and memory // self._count
        nodes = [Node(name, len(self._cores(name)), share) for name in self._names]
        devices = [
            Device(replace(id_of(device), node=node.name), device.device_kind, memory=share)
            for node in nodes
            for device in jax.local_devices(backend=HOST)
        ]
        cores = sum(node.cores for node in nodes)
        return Cluster(tuple(devices), cores, memory, nodes=tuple(nodes), launch=self.launch)

    def host(self, node: str) -> str:
        return "127.0.0.1"

    def why_not_in(self, folder: Path) -> str:
        return ""

    def why_not(self, plan: Plan) -> str:
        return why_not_there(plan, self._names)

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Reserve nothing, since this machine is already here."""

    def start(self, seat: Seat, command: Command) -> ChildMember:
        cores = ",".join(map(str, self._cores(seat.node)))
        path = os.pathsep.join(_python_path(command.env.get("PYTHONPATH", "")))
        env = {**command.env, CORES: cores, "JAX_PLATFORMS": HOST, "PYTHONPATH": path}
        return ChildMember(command.argv, env, command.stdin)

    def release(self) -> None:
        """Do nothing, since nothing was reserved."""

    @property
    def _names(self) -> list[str]:
        return [f"n{i}" for i in range(self._count)]

    def _cores(self, node: str) -> list[int]:
        return part_of_cores(self._names.index(node), self._count)


def _python_path(path: str) -> list[str]:
    """Return those folders of a PYTHONPATH that have installed packages."""
    installed = [folder for folder in path.split(os.pathsep) if is_installed(Path(folder))]
    return installed if is_installed(HOCKET.parent) else [*installed, str(HOCKET.parent)]


LAUNCHER = Loopback
