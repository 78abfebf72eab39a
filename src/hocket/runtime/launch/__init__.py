"""How the instances of a plan are started, commanded, watched and ended.

    launchers/      the ways to start instances, a file each; their Protocols are below
    survey/         describes the nodes of a cluster, and measures the network between them
    crew.py         the instances of a plan: commands them, and gathers their answers
    seats.py        which processes a plan needs, and how they share the machine
    starting.py     starts the instances, connects to them, and tells them what to run
    nodes.py        the nodes of a cluster, whose stewards start the instances there
    watch.py        gathers answers, and ends the run if one will never come
    ending.py       ends the instances, and gives everything back
    control.py      the connection between a run and an instance, for commands and answers
    worker.py       one instance, with a method for each command
    process.py      a worker in an operating-system process of its own
    shutdown.py     how such a process ends; on a GPU, not in the middle of a program
    shipping.py     packs an algorithm for other processes
    projects.py     sends the user's own modules to other machines
    memory.py       memory that all instances see: statuses, a ledger, the newest version

A launcher starts, watches and ends processes; it carries no messages. For each seat of a plan it
starts a process (or a thread, if the plan runs in one process). The process prints, as its first
line, the address at which it listens. The run connects to that address, tells the worker what to
run, and commands it from then on. So a launcher needs to know only what to start, where to start
it, and how to end it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from hocket.cluster import Cluster
from hocket.core.plan.data import Launch, Plan
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError, unknown
from hocket.system.registry import Registry, lacking

SURVEY_SECONDS = 60.0
"""Seconds that a launcher has to find out which nodes there are, and their devices."""
HERE = "threads"
"""The name of the default launcher, for a plan that names none."""

CLUSTERS = ("hosts:FILE", "loopback:2", "ray")
"""How the clusters that come with hocket are named, to be told when a name is unknown."""

LAUNCHERS = Registry(
    "launcher", "hocket.runtime.launch.launchers", "LAUNCHER", group="hocket.launchers"
)


@dataclass(frozen=True)
class Seat:
    """One process for a launcher to start, and the devices, cores and machine that it needs."""

    name: str
    """A name that no other seat of the plan has, such as `actor/0`."""
    instances: tuple[str, ...]
    devices: tuple[DeviceId, ...] = ()
    """The devices of this process, by their names in the plan. If empty, it may use any device."""
    cores: int = 1
    node: str = ""
    """The machine on which to start this process. If empty, any machine will do."""


@dataclass(frozen=True)
class Command:
    """A program for a launcher to start, or a function if all seats are in one process."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The complete environment of the program; nothing is inherited."""
    stdin: bytes = field(default=b"", repr=False)
    work: Callable[[], None] | None = None


class Fate(NamedTuple):
    """How a member ended, such as `process 7 was killed by SIGKILL`, and the end of its stderr."""

    how: str
    stderr: str = ""


class NodeLost(Fate):
    """The end of a member whose node is lost."""


class Member(Protocol):
    """A process or thread that a launcher has started."""

    def hello(self, seconds: float) -> str:
        """Return the first line that the member prints, its address; "" if it ends without one.

        Raise `TimeoutError` if it has printed nothing after `seconds`.
        """
        ...

    def poll(self) -> Fate | None:
        """Return how the member ended, or None if it may still be running."""

    def kill(self, seconds: float) -> bool:
        """End the member by force. Return True if it has surely ended within `seconds`."""
        ...


class Launcher(Protocol):
    """A way to start, watch and end processes. It carries no messages."""

    launch: Launch
    """The launcher's name and abilities, such as whether its processes share memory."""

    def why_not(self, plan: Plan) -> str:
        """Return "" if a plan can be started here, else a sentence that says why it is refused."""
        ...

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Reserve room for all seats within `seconds`. If that fails, reserve nothing and raise."""

    def start(self, seat: Seat, command: Command) -> Member:
        """Start a seat, and return without waiting for it."""
        ...

    def release(self) -> None:
        """Give back what `reserve` took, even after a failure. A second call does nothing."""


class ClusterLauncher(Launcher, Protocol):
    """A launcher of stewards on the nodes of a cluster. Its `launch` has `nodes=True`."""

    def nodes(self, seconds: float) -> Sequence[str]:
        """Return the names of all nodes, within `seconds`."""
        ...

    def survey(self, seconds: float) -> Cluster:
        """Return all nodes and their devices, within `seconds`.

        Seconds beyond SURVEY_SECONDS are for nodes that are still to come.
        """
        ...

    def why_not_in(self, folder: Path) -> str:
        """Return "" if runs can be kept in a folder here, else a sentence that says why not."""
        ...

    def host(self, node: str) -> str:
        """Return the address or the interface at which the processes on a node listen."""
        ...


def launcher_named(name: str) -> Launcher:
    """Make the launcher of a name such as `threads`, `loopback:2` or `mine.py:MyLauncher`."""
    kind, _, argument = name.partition(":")
    if argument and kind in LAUNCHERS.names:
        return LAUNCHERS.make(kind, Launcher, argument=argument)
    return LAUNCHERS.make(name or HERE, Launcher)


def cluster_named(name: str, wait: float = 0.0) -> Cluster:
    """Return the cluster of a name such as `loopback:2`, with all its nodes.

    If the name asks for a number of nodes, wait that many seconds for them.
    """
    return cluster_launcher(name).survey(SURVEY_SECONDS + wait)


def check_folder(launch: Launch, runs: Path) -> None:
    """Refuse a folder for runs that ends with the cluster on which they run."""
    if launch.nodes and launch.name:
        why = cluster_launcher(launch.name).why_not_in(runs.absolute())
        if why:
            raise ValueError(f"runs on `{launch.name}` cannot be kept there: {why}")


def cluster_launcher(name: str) -> ClusterLauncher:
    """Make the launcher of a cluster's name, and refuse a launcher that has no nodes."""
    if name.partition(":")[0] not in LAUNCHERS.names and not _may_be_own(name):
        own = " Name your own as `module:NAME` or `file.py:NAME`."
        raise ValueError(unknown("cluster", name, CLUSTERS) + own)
    launcher = launcher_named(name)
    if not launcher.launch.nodes:
        raise ValueError(
            f"`{name}` is no cluster, because it starts instances on this machine alone: name one, "
            f"such as {', '.join(f'`{known}`' for known in CLUSTERS)}."
        )
    if missing := lacking(launcher, ClusterLauncher):
        raise ValueError(f"the launcher `{name}` has nodes, but no {', '.join(missing)}.")
    return cast(ClusterLauncher, launcher)


def _may_be_own(name: str) -> bool:
    """Return True if `module:NAME` or `file.py:NAME` names a module that there may be."""
    home, _, attribute = name.rpartition(":")
    package = home.partition(".")[0]
    if not attribute or not package:
        return home.endswith(".py")
    has_module = package in sys.modules or importlib.util.find_spec(package) is not None
    return has_module or home.endswith(".py")


def launch_named(name: str) -> Launch:
    """Return the name and the abilities of a launcher, to be given to a plan.

    plan = Plan(..., launch=launch_named("processes"))
    """
    return replace(launcher_named(name).launch, name=name)


def launcher_of(plan: Plan) -> Launcher:
    """Make the launcher of a plan.

    Refuse the plan if its launcher is unknown, has changed, or cannot start it here.
    """
    name = plan.launch.name or HERE
    if plan.launch.nodes and not plan.launch.name:
        raise PlanError(
            "the plan was made for a `Cluster` without a launcher, so nothing can start its "
            'instances: name a cluster that can, as in `cluster="loopback:2"`.'
        )
    try:
        launcher = launcher_named(name)
    except ValueError as error:
        raise PlanError(str(error)) from None
    if (offered := replace(launcher.launch, name=plan.launch.name)) != plan.launch:
        raise PlanError(
            f"the plan was made for {plan.launch}, but the launcher `{name}` now offers "
            f"{offered}: make the plan again."
        )
    if why := launcher.why_not(plan):
        raise PlanError(f"the launcher `{name}` cannot start this plan: {why}")
    return launcher
