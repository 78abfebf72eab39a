"""The end of a crew: end every instance, then give back whatever was taken."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from hocket.cluster.slices import Slices
from hocket.runtime.launch import Launcher
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.nodes import LEASE_SECONDS, Node
from hocket.runtime.launch.watch import GRACE_SECONDS, RunningInstance, fate_of
from hocket.runtime.launch.worker import Worker


@dataclass
class Resources:
    """The resources of a crew, which are given back however the crew or Python ends.

    They hold no reference to the crew, so that its finalizer can call `release`.
    """

    launcher: Launcher
    memory: PlanMemory
    slices: Slices
    grace: float
    """Seconds that instances have to end by themselves, before they are killed."""
    workers: list[Worker]
    """The instances of this process; empty if each has a process of its own."""
    running: list[RunningInstance] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    """The nodes of a cluster on which instances run."""
    lease: float = LEASE_SECONDS
    """Seconds without a sign of life after which a node counts as lost."""
    logs: Path | None = None
    """The folder for what instances on other nodes print, besides the terminal; None for none."""

    def release(self) -> None:
        """End every instance, by force if it outlasts `grace`. Then give back all resources."""
        # First end every wait, so that instances that wait notice that the run is over.
        if self.memory.ledger:
            self.memory.ledger.close()
        for worker in self.workers:
            worker.disconnect()
        for instance in self.running:
            instance.hang_up()  # a process then ends, whatever it is doing
        has_ended = self._end_members()
        for worker in self.workers:
            worker.end(at_rest=has_ended.get(worker.name, True))  # no entry: it never started
        self.running.clear()
        self._end_stewards()
        # Last, because instances used these until they ended.
        self.launcher.release()
        self.slices.close()
        self.memory.close()

    def _end_stewards(self) -> None:
        """Hang up on every steward, and wait for its end or kill it."""
        for node in self.nodes:
            node.close()
        for node in self.nodes:
            if fate_of(node.steward, GRACE_SECONDS) is None:
                node.steward.kill(GRACE_SECONDS)
        self.nodes.clear()

    def _end_members(self) -> dict[str, bool]:
        """Wait for each instance to end, or kill it. Return, by name, whether it surely ended."""
        # One deadline for all, so that the grace does not add up over instances that hang.
        deadline = time.monotonic() + self.grace
        return {
            instance.name: fate_of(instance.member, deadline - time.monotonic()) is not None
            or instance.member.kill(GRACE_SECONDS)
            for instance in self.running
        }
