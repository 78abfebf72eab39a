"""How the instances of a plan are started, commanded, watched and ended.

    launchers/      the ways to start them, a file each; `Launcher` and `Member` are below
    crew.py         the instances of a plan, commanded: all are told, and all answer
    seats.py        which processes a plan needs, and how each shares the machine
    starting.py     the instances started, connected to, and told what they are
    watch.py        their answers gathered, or how the run ends where one never comes
    ending.py       the instances ended, and everything given back
    control.py      the connection between a run and an instance: commands there, answers back
    worker.py       one instance, with a method for each command
    process.py      a worker in an operating-system process of its own
    shutdown.py     how such a process ends, on a GPU not in the midst of a program
    shipping.py     an algorithm on its way to another process
    memory.py       what all instances see: statuses, the ledger of a free plan, its newest version

A launcher starts, watches and ends; it carries no messages. For each seat of a plan it starts a
process (or a thread, where its instances are in one process), which prints the address at which it
can be reached as its first line. The run connects to that, tells the worker what it is, and from
then on commands it. So a launcher is where, with which command, and has it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from hocket.core.plan.data import Launch, Plan
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError
from hocket.system.registry import Registry

HERE = "threads"
"""The launcher of a plan that names none."""

LAUNCHERS = Registry(
    "launcher", "hocket.runtime.launch.launchers", "LAUNCHER", group="hocket.launchers"
)


@dataclass(frozen=True)
class Seat:
    """One process that a launcher starts, and what it must have there."""

    name: str
    """Unlike that of any other seat of the plan, such as `actor/0`."""
    instances: tuple[str, ...]
    devices: tuple[DeviceId, ...] = ()
    """As the plan names them; empty: whatever there is."""
    cores: int = 1
    node: str = ""
    """The machine; none: any."""


@dataclass(frozen=True)
class Command:
    """The work of a seat: a program, or a function where all seats are in one process."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of the program."""
    stdin: bytes = b""
    work: Callable[[], None] | None = None


class Fate(NamedTuple):
    """How a member ended: `process 7 was killed by SIGKILL`, and the last of its errors."""

    how: str
    stderr: str = ""


class Member(Protocol):
    """A process or thread that a launcher has started."""

    def hello(self, seconds: float) -> str:
        """The first line that it printed, which is its address; "" where it has ended before.

        `TimeoutError` where it has said nothing for so long.
        """
        ...

    def poll(self) -> Fate | None:
        """How it ended; None where it is not known to have ended."""

    def kill(self, seconds: float) -> bool:
        """End it by force. Whether it has ended for certain, after so many seconds at the most."""
        ...


class Launcher(Protocol):
    """Starts, watches and ends. It carries no messages: that is the control connection's work."""

    launch: Launch
    """Its name and abilities: what a plan may count on."""

    def why_not(self, plan: Plan) -> str:
        """Why it cannot start the instances of a plan here; "" if it can."""
        ...

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Make sure of a place for every seat, for all of them or for none."""

    def start(self, seat: Seat, command: Command) -> Member:
        """Start a seat. Returns at once."""
        ...

    def release(self) -> None:
        """Give back what `reserve` took, also after a failure. Once more does nothing."""


def launcher_named(name: str) -> Launcher:
    """The launcher of a name, a new one: `threads`, `processes`, `mine.py:MyLauncher`."""
    return LAUNCHERS.make(name or HERE, Launcher)


def launch_named(name: str) -> Launch:
    """The launch of a plan with the launcher of a name: `Plan(..., launch=launch_named(name))`."""
    return replace(launcher_named(name).launch, name=name)


def launcher_of(plan: Plan) -> Launcher:
    """The launcher of a plan; refused where it is unknown, is another one, or cannot start it."""
    name = plan.launch.name or HERE
    try:
        launcher = launcher_named(name)
    except ValueError as error:
        raise PlanError(str(error)) from None
    if (found := replace(launcher.launch, name=plan.launch.name)) != plan.launch:
        raise PlanError(
            f"the plan counts on {plan.launch}, and the launcher `{name}` offers {found}: make the "
            f"plan again."
        )
    if why := launcher.why_not(plan):
        raise PlanError(f"`{name}` cannot start the instances of this plan: {why}")
    return launcher
