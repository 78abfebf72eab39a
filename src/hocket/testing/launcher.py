"""A conformance kit for launchers."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hocket.core.graph.trace import trace
from hocket.core.plan.data import Place, Plan
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError
from hocket.runtime.distributed import Split
from hocket.runtime.launch import (
    ClusterLauncher,
    Command,
    Member,
    Seat,
    cluster_named,
    launch_named,
    launcher_named,
)
from hocket.runtime.launch.watch import fate_of
from hocket.testing.same_numbers import SMALL, carried_out, compared, names_of


@dataclass
class LauncherCheck:
    """The results of `check_launcher`. Printing them shows a line for each requirement."""

    name: str
    tried: list[str] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    """For each plan that ran, the largest difference of its state from the fused program's."""

    def __str__(self) -> str:
        ran = [f"{name}: max difference {value:.2g}" for name, value in self.differences.items()]
        return "\n".join([*(f"  {line}" for line in (*self.tried, *ran)), f"ok: `{self.name}`"])


def check_launcher(
    launcher: str, *, iterations: int = 3, tolerance: float = 1e-5, seconds: float = 60.0
) -> LauncherCheck:
    """Verify that a launcher starts and ends programs, and that runs give the same numbers.

        print(check_launcher("examples/own_launcher.py:Programs"))

    `launcher` is its name: `processes`, `package.module:Mine` or `path/to/file.py:Mine`. Unless the
    launcher runs instances as threads, it must first start some small programs, pass on the first
    line that each prints, and end them. Then it runs PPO. A launcher of nodes, such as
    `loopback:2`, must also survey them. The plans use its first and its last node.
    """
    check = LauncherCheck(launcher)
    nodes = _surveyed(check) if launch_named(launcher).nodes else {}
    if not launch_named(launcher).one_process:
        _check_members(check, seconds, list(nodes))
    graph, on = trace(SMALL["ppo"](), 8), list(nodes.values()) or [()]
    whole = Place("all", names_of(graph), on[0])
    apart = Place("actor", ("env", "act"), on[0]), Place("learner", ("learn",), on[-1])
    plans = {"one place": (whole,), "actor | learner": apart}
    expected = carried_out(Plan(graph, (Place("all", names_of(graph)),)), 0, iterations)[1]
    for name, places in plans.items():
        plan = Plan(graph, places, launch=launch_named(launcher))
        last = carried_out(plan, 0, iterations, Split)[1]
        check.differences[name] = compared(
            f"`{launcher}`, {name}", last, expected, tolerance, PlanError, f"The plan:\n{plan}"
        )
    return check


def _surveyed(check: LauncherCheck) -> dict[str, tuple[DeviceId]]:
    """Survey the nodes of a launcher. Return the first device of each."""
    cluster = cluster_named(check.name)
    names = [node.name for node in cluster.nodes]
    _expect(check, "finds nodes with different names", names,
            well=bool(names) and len(set(names)) == len(names))  # fmt: skip
    on = {device.id.node: (device.id,) for device in reversed(cluster.devices)}
    _expect(check, "finds devices on each node and nowhere else", list(map(str, cluster.devices)),
            well=on.keys() == set(names))  # fmt: skip
    _expect(check, "says how instances run on its nodes", cluster.launch,
            well=cluster.launch == launch_named(check.name))  # fmt: skip
    hosts = [cast(ClusterLauncher, launcher_named(check.name)).host(name) for name in names]
    _expect(check, "knows the address of each node", hosts, well=all(hosts))
    return {name: on[name] for name in names}


def _expect(check: LauncherCheck, what: str, seen: Any, *, well: bool) -> None:
    if not well:
        raise ValueError(f"`{check.name}` must be a launcher that {what}: found {seen!r}.")
    check.tried.append(what)


def _check_members(check: LauncherCheck, seconds: float, nodes: Sequence[str]) -> None:
    """Try a launcher with programs that print something, print nothing, or end by themselves.

    On the machines of `nodes` a program has its own environment and working directory.
    """
    turn = itertools.cycle(nodes or [""])

    def program(name: str, code: str, stdin: bytes = b"") -> Member:
        seat = Seat(name, (name,), node=next(turn))
        launcher.reserve([seat], seconds)
        env = {**os.environ, "HOCKET_CHECK": f"it is {name}"}
        return launcher.start(seat, Command((sys.executable, "-c", code), env, stdin))

    def speaking(name: str, stdin: bytes = b"") -> Member:
        text = repr(f"it is {name}") if nodes else "os.environ['HOCKET_CHECK']"
        speak = f"import os, sys, time; print({text}, sys.stdin.read()); sys.stdout.flush(); "
        return program(name, f"{speak}time.sleep({seconds})", stdin)

    expect = functools.partial(_expect, check)
    launcher = launcher_named(check.name)
    try:
        alive, other = speaking("a/0", b"and heard"), speaking("a/1")
        said = alive.hello(seconds), other.hello(seconds).strip()
        given = "and its input" if nodes else "its environment and its input"
        expect(f"passes on what each program says first, {given}", said,
               well=said == ("it is a/0 and heard", "it is a/1"))  # fmt: skip
        ended = alive.poll(), other.poll()
        expect("knows that running programs have not ended", ended,
               well=ended == (None, None))  # fmt: skip
        is_certain, fate = alive.kill(seconds), alive.poll()
        expect("ends a program by force, and knows when it has", (is_certain, fate),
               well=is_certain == (fate is not None))  # fmt: skip
        expect("ends one program and no other", other.poll(), well=other.poll() is None)
        other.kill(seconds)
        if not nodes:
            placed = program("a/4", "import os; print(os.getcwd())")
            expect("runs programs in the working directory of the run", placed.hello(seconds),
                   well=placed.hello(seconds) == os.getcwd())  # fmt: skip
            placed.kill(seconds)
        failing = program("a/2", "import sys; sys.exit('the last words')")
        expect("gets no first line from a program that ends without one", failing.hello(seconds),
               well=failing.hello(seconds) == "")  # fmt: skip
        fate = fate_of(failing, seconds)
        expect("tells how a program ended, with the last of its standard error", fate,
               well=fate is not None and "the last words" in fate.stderr)  # fmt: skip
        silent = program("a/3", f"import time; time.sleep({seconds})")
        expect("gives up in time on a program that prints nothing", silent, well=_times_out(silent))
        silent.kill(seconds)
    finally:
        launcher.release()
        launcher.release()  # `release` must do nothing the second time


def _times_out(member: Member) -> bool:
    try:
        member.hello(0.2)
    except TimeoutError:
        return True
    return False
