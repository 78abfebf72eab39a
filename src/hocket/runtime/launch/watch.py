"""Instances at work, as a run sees them: how they answer, and how the run ends if they cannot.

An instance fails with an answer that says so; its connection closes, or its member ends, without
one; or everybody waits for each other. Each ends the run, with the name of whoever failed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.launch import Fate, Member
from hocket.runtime.launch.control import Answer, Answers, Failure
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.seats import others_on_gpu
from hocket.runtime.observe.status import deadlock
from hocket.system.children import last_words

LOOK_SECONDS = 0.2
"""How often somebody looks whether the instances go on."""
GRACE_SECONDS = 1.0
"""Seconds that the others get to end after one has failed; a thread cannot be ended by force."""
PATIENCE = 5.0
"""Seconds without a message, everybody waiting, after which a run counts as stuck."""
MAX_STEP = 1.0
"""Seconds that one look counts for at most."""


class InstanceError(RuntimeError):
    """An instance failed; the message begins with its name and its traceback."""


class Deadlock(RuntimeError):
    """Instances wait for each other; the message says who for whom."""


@dataclass
class RunningInstance:
    """One instance at work: who runs it, and how it is told."""

    name: str
    member: Member
    tell: Callable[[tuple[Any, ...]], None]
    """Give it a command, even where it has died: its missing answer reports that."""
    hang_up: Callable[[], None]
    """Let it end, as soon as it has time to listen."""

    @property
    def place(self) -> str:
        return self.name.rpartition("/")[0]


class Watch:
    """Gathers the answers of instances, and raises where one will never come."""

    def __init__(self, plan: Plan, memory: PlanMemory, running: Sequence[RunningInstance]) -> None:
        self._plan, self._memory, self._running = plan, memory, running
        self.answers: Answers = queue.SimpleQueue()
        """Where all instances put theirs."""

    def gather(self, instances: Iterable[str]) -> dict[str, Any]:
        """An answer of each of these; the first failure of any instance is raised."""
        missing, found = set(instances), {}
        stuck = DeadlockWatch(self._plan, self._memory.statuses)
        while missing:
            try:
                answer = self.answers.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._check_members()
            else:
                found[answer.instance] = self._content(answer)
                missing.discard(answer.instance)
            stuck.look()
        return found

    def _content(self, answer: Answer) -> Any:
        if answer.outcome == "done":
            return answer.content
        if answer.outcome == "gone":
            (instance,) = (x for x in self._running if x.name == answer.instance)
            raise lost(instance.name, instance.member)
        failure: Failure = answer.content
        hint = others_on_gpu(self._plan, answer.instance) if "CUDA" in failure.text else ""
        raise InstanceError(
            f"the instance `{answer.instance}` failed:\n{failure.text}{hint}"
        ) from failure.error

    def _check_members(self) -> None:
        """A process that is gone closes its connection, unless one that it has forked holds it."""
        for instance in self._running:
            if instance.member.poll() is not None and self.answers.empty():
                raise lost(instance.name, instance.member)


class DeadlockWatch:
    """Looks at the instances of a run now and then, and raises `Deadlock` where none can go on."""

    def __init__(self, plan: Plan, statuses: np.ndarray) -> None:
        self._plan, self._statuses = plan, statuses
        delays = [x.delay for x in (*plan.channels.values(), *plan.means.values())]
        self._patience = PATIENCE + max(delays, default=0.0)
        self._seen = statuses.copy()
        self._stuck, self._looked = 0.0, time.monotonic()

    def look(self) -> None:
        now, time_now = self._statuses.copy(), time.monotonic()
        # Whoever looks may have been stopped in between (Ctrl-Z): that counts as one look.
        passed, self._looked = min(time_now - self._looked, MAX_STEP), time_now
        waiting = deadlock(self._plan, self._seen, now)
        self._stuck = self._stuck + passed if waiting else 0.0
        self._seen = now
        if waiting and self._stuck > self._patience:
            raise Deadlock(waiting)


def fate_of(member: Member, seconds: float) -> Fate | None:
    """How a member ended, after so many seconds at the most; None where it has not."""
    deadline = time.monotonic() + seconds
    while (fate := member.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return fate


def lost(name: str, member: Member) -> InstanceError:
    """The error of an instance that has ended, or soon will, without a word."""
    fate = fate_of(member, GRACE_SECONDS)
    if fate is None:
        return InstanceError(f"the instance `{name}` stopped answering.")
    return InstanceError(f"the instance `{name}` failed: {last_words(*fate)}")
