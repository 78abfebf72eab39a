"""Runs the instances of a plan in one thread, in an order that a seed decides.

In each turn, one of the instances that can go on is drawn at random, and runs until it may have to
wait. So an asynchronous run can be repeated exactly, and each seed tests an order of events that
threads would show once in a thousand runs.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.errors import PlanError
from hocket.runtime.host_calls.services import Services
from hocket.runtime.instance.account import Wait
from hocket.runtime.instance.instance import Instance
from hocket.runtime.instance.metrics import MetricRows
from hocket.runtime.launch.crew import Crew
from hocket.runtime.launch.watch import Deadlock, InstanceError
from hocket.runtime.observe.status import IDLE, WORKING, counting, deadlock


@dataclass(frozen=True)
class Faults:
    """Failures to inject into a seeded run."""

    stall: float = 0.0
    """The probability that an instance whose turn it is stalls instead of running."""
    turns: int = 20
    """The length of the longest stall, in turns."""
    crash: tuple[str, int] | None = None
    """An instance and the iteration in which it crashes: `("actor/0", 3)`."""


class InjectedCrash(RuntimeError):
    """The crash that `Faults.crash` asked for."""


@dataclass
class _Task:
    instance: Instance
    steps: Iterator[Wait | None]
    rows: MetricRows
    wait: Wait | None = None
    stalled_until: int = 0


class Seeded(Crew):
    """Runs the instances of a plan in this thread, one at a time, in an order set by `seed`."""

    def __init__(self, plan: Plan, seed: int, faults: Faults | None = None) -> None:
        if plan.parts > 1:
            raise PlanError(f"`Seeded` runs plans with parts=1, found parts={plan.parts}.")
        if not plan.launch.one_process:
            raise PlanError(
                f"`Seeded` runs instances in one process, found launch={plan.launch.name}."
            )
        super().__init__(plan)
        for instance in self.instances:
            # Give links room for all messages: a `send` that waits would block the only thread.
            for end in instance.ends:
                end.link = replace(end.link, slots=sys.maxsize)
        self._seed, self._faults = seed, faults or Faults()
        self._tasks: dict[str, _Task] = {}
        self._rows: dict[str, dict[ValueId, np.ndarray]] = {}
        self._begin_anew()

    def load(
        self, leaves: Mapping[ValueId, Any], late: Mapping[str, Any], services: Services
    ) -> None:
        super().load(leaves, late, services)
        self._begin_anew()

    def reseed(self, seed: int) -> None:
        """Draw the order of the instances from `seed`, from the next `load` on.

        Compiled programs are kept.
        """
        self._seed = seed

    def run(self, count: int) -> list[dict[ValueId, np.ndarray]]:
        counts = counting(self.plan)
        with self._or_end():
            self._let_go_on()
            for instance in self.instances:
                if instance.place in counts:
                    self._add(instance, count)
            self._work_until([i.name for i in self.instances if i.place in counts])
        return [self._rows.pop(i.name, {}) for i in self.instances]

    def starve(self) -> None:
        """Give no turn to the learner until no other instance can go on."""
        with self._or_end():
            self._let_go_on()
            while able := [task for task in self._tasks.values() if self._is_ready(task)]:
                self._advance(self._random.choice(able))

    def pause(self) -> None:
        with self._or_end():
            if self.ledger and self._tasks:
                self.ledger.set_stop(True)
                self._work_until(list(self._tasks))

    def _start(self) -> None:
        """Do nothing: the thread that sends a command also carries it out."""

    def _ask_each(self, commands: Mapping[str, tuple[Any, ...]]) -> list[Any]:
        self.pause()
        workers = {worker.name: worker for worker in self.workers}
        with self._or_end():
            return [getattr(workers[n], name)(*given) for n, (name, *given) in commands.items()]

    def _let_go_on(self) -> None:
        """In a free plan, start the instances that run until they are stopped."""
        if self.ledger:
            self.ledger.set_stop(False)
        for instance in self.instances:
            if instance.place not in counting(self.plan) and instance.name not in self._tasks:
                self._add(instance, None)

    def _begin_anew(self) -> None:
        self._random, self._turn = random.Random(self._seed), 0
        self._tasks.clear()

    def _add(self, instance: Instance, count: int | None) -> None:
        rows = MetricRows()
        self._tasks[instance.name] = _Task(instance, instance.steps(count, rows), rows)

    def _work_until(self, names: list[str]) -> None:
        """Give turns until the instances of these names have finished."""
        while any(name in self._tasks for name in names):
            self._turn += 1
            able = [task for task in self._tasks.values() if self._is_ready(task)]
            if not able:
                raise Deadlock(deadlock(self.plan, self.statuses, self.statuses))
            awake = [task for task in able if task.stalled_until <= self._turn]
            task = self._random.choice(awake or able)
            if self._random.random() < self._faults.stall:
                task.stalled_until = self._turn + self._random.randint(1, self._faults.turns)
                continue
            self._advance(task)

    def _advance(self, task: _Task) -> None:
        instance = task.instance
        try:
            if self._faults.crash == (instance.name, int(instance.status["iteration"])):
                raise InjectedCrash(f"as asked, in iteration {instance.status['iteration']}")
            instance.status["phase"] = WORKING
            task.wait = wait = next(task.steps)
            if wait is not None:
                instance.account.show(wait.phase, wait.transfer, wait.peers[0])
        except StopIteration:
            instance.status["phase"] = IDLE
            del self._tasks[instance.name]
            self._rows[instance.name] = instance.metrics(task.rows)
        except Exception as error:
            text = traceback.format_exc()
            raise InstanceError(f"the instance `{instance.name}` failed:\n{text}") from error

    def _is_ready(self, task: _Task) -> bool:
        wait = task.wait
        if wait is None:
            return True
        if wait.ready is not None:
            return wait.ready()
        ends = task.instance.inbox.ends
        return all(ends[wait.transfer.id, source].box.ready() for source in wait.peers)
