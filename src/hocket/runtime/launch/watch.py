"""Gather the answers of instances, and end the run with an error if one will never come.

A run fails in one of four ways: an instance answers `failed`, its connection closes, its process
ends, or all instances wait for each other. Except in the last, the error begins with the name of
the instance that failed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.launch import Fate, Member, NodeLost
from hocket.runtime.launch.control import Answer, Answers, Failure
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.seats import others_on_gpu
from hocket.runtime.observe.status import deadlock
from hocket.system.children import last_words

LOOK_SECONDS = 0.2
"""Seconds between two checks that the instances are alive and make progress."""
GRACE_SECONDS = 1.0
"""Seconds that an instance has to end by itself, and the same again after it is killed. Plans that
use an accelerator add `FINISH_SECONDS` to the first."""
BROKEN = ("hocket.system.events.Closed", "another replica has ended")
"""Signs, in the traceback of an instance, that it failed because another one has ended. A broken
connection is noticed sooner than the end of the process that broke it."""
PATIENCE = 5.0
"""Seconds after which instances that all wait, and get no message, count as stuck."""
MAX_STEP = 1.0
"""The most seconds that one check adds to the time without progress. More may have passed since the
last check, as after Ctrl-Z, but that does not mean that instances are stuck."""


class InstanceError(RuntimeError):
    """An instance failed. The message begins with its name and its traceback."""


class Deadlock(RuntimeError):
    """All instances wait for each other. The message says who waits for whom."""


@dataclass
class RunningInstance:
    """One running instance: the process or thread that runs it, and how to reach it."""

    name: str
    member: Member
    tell: Callable[[tuple[Any, ...]], None]
    """Send the instance a command. If it has died, its missing answer shows that."""
    hang_up: Callable[[], None]
    """Ask the instance to end. A process notices at once, a thread after its current command."""

    @property
    def place(self) -> str:
        return self.name.rpartition("/")[0]


class Watch:
    """The watch over instances: it gathers their answers, and raises if one will never come."""

    def __init__(
        self, plan: Plan, memory: PlanMemory, running: Sequence[RunningInstance],
        lease: float = 0.0,
    ) -> None:  # fmt: skip
        self._plan, self._memory, self._running, self._lease = plan, memory, running, lease
        self.answers: Answers = queue.SimpleQueue()
        """The queue into which all instances put their answers."""

    def gather(self, instances: Iterable[str]) -> dict[str, Any]:
        """Return one answer of each of `instances`. Raise if any instance of the plan fails."""
        missing, contents = set(instances), {}
        stuck = DeadlockWatch(self._plan, self._memory.statuses, self._lease)
        while missing:
            try:
                answer = self.answers.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._check_members()
            else:
                contents[answer.instance] = self._content(answer)
                missing.discard(answer.instance)
            stuck.look()
        return contents

    def _content(self, answer: Answer) -> Any:
        if answer.outcome == "done":
            return answer.content
        if answer.outcome == "gone":
            (instance,) = (x for x in self._running if x.name == answer.instance)
            raise lost(f"the instance `{instance.name}`", instance.member)
        # The loss of a node breaks the connections of instances elsewhere, which then fail too.
        for instance in self._running:
            if isinstance(instance.member.poll(), NodeLost):
                raise lost(f"the instance `{instance.name}`", instance.member)
        failure: Failure = answer.content
        if any(sign in failure.text for sign in BROKEN) and (cause := self._death()):
            raise cause
        hint = others_on_gpu(self._plan, answer.instance) if "CUDA" in failure.text else ""
        raise InstanceError(
            f"the instance `{answer.instance}` failed:\n{failure.text}{hint}"
        ) from failure.error

    def _death(self) -> InstanceError | None:
        """Return the error of an instance that has ended, after waiting a little for one."""
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            for instance in self._running:
                if instance.member.poll() is not None:
                    return lost(f"the instance `{instance.name}`", instance.member)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _check_members(self) -> None:
        """Raise if a process has ended without closing its connection.

        The connection stays open if a process forked from the ended one still holds it.
        """
        for instance in self._running:
            # An answer that came just before the end says more than the end does: read it first.
            if instance.member.poll() is not None and self.answers.empty():
                raise lost(f"the instance `{instance.name}`", instance.member)


class DeadlockWatch:
    """A watch over what the instances are doing. It raises `Deadlock` if none of them can go on."""

    def __init__(self, plan: Plan, statuses: np.ndarray, lease: float = 0.0) -> None:
        self._plan, self._statuses = plan, statuses
        # The plan may delay messages on purpose, and a wait for these is no deadlock.
        delays = [x.delay for x in (*plan.channels.values(), *plan.means.values())]
        self._patience = PATIENCE + max(delays, default=0.0)
        # From another node, a message can take long, and so can a status that says it has arrived.
        # A node that is silent for the lease counts as lost, which says more than a deadlock.
        self._patience += lease if plan.launch.nodes else 0.0
        self._seen = statuses.copy()
        self._stuck, self._looked = 0.0, time.monotonic()

    def look(self) -> None:
        now, time_now = self._statuses.copy(), time.monotonic()
        # After Ctrl-Z the last look is long ago, which does not mean that instances are stuck.
        passed, self._looked = min(time_now - self._looked, MAX_STEP), time_now
        waiting = deadlock(self._plan, self._seen, now)
        self._stuck = self._stuck + passed if waiting else 0.0
        self._seen = now
        if waiting and self._stuck > self._patience:
            raise Deadlock(waiting)


def fate_of(member: Member, seconds: float) -> Fate | None:
    """Wait at most `seconds` for a member to end. Return how it ended, or None if it has not."""
    deadline = time.monotonic() + seconds
    while (fate := member.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return fate


def lost(who: str, member: Member) -> InstanceError:
    """Return the error of an instance, or a steward, that ended without saying why."""
    fate = fate_of(member, GRACE_SECONDS)
    how = f"failed: {last_words(*fate)}" if fate else "stopped answering."
    return InstanceError(f"{who} {how}")
