"""The end of a crew: every instance ends, and whatever was taken is given back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hocket.cluster.slices import Slices
from hocket.runtime.launch import Launcher
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.watch import GRACE_SECONDS, RunningInstance, fate_of
from hocket.runtime.launch.worker import Worker


@dataclass
class Resources:
    """Resources that are given back, whatever becomes of a crew or of Python."""

    launcher: Launcher
    memory: PlanMemory
    slices: Slices
    grace: float
    """Seconds that instances get to end by themselves."""
    workers: list[Worker]
    """The instances of this process; none where each has a process of its own."""
    running: list[RunningInstance] = field(default_factory=list)

    def release(self) -> None:
        """Let every instance end, by force where it does not within the grace; then the rest."""
        if self.memory.ledger:
            self.memory.ledger.close()
        for worker in self.workers:
            worker.disconnect()
        for instance in self.running:
            instance.hang_up()  # which ends it, whatever it is doing
        has_ended = self._end_members()
        for worker in self.workers:
            worker.end(at_rest=has_ended.get(worker.name, True))  # True: it was never started
        self.running.clear()
        self.launcher.release()
        self.slices.close()
        self.memory.close()

    def _end_members(self) -> dict[str, bool]:
        """Whether each instance has ended for certain."""
        deadline = time.monotonic() + self.grace
        return {
            instance.name: fate_of(instance.member, deadline - time.monotonic()) is not None
            or instance.member.kill(GRACE_SECONDS)
            for instance in self.running
        }
