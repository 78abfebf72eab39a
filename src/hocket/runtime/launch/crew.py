"""The running instances of a plan: started by a launcher, told what to do, watched, ended."""

from __future__ import annotations

import contextlib
import os
import queue
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from hocket.cluster.slices import Slices
from hocket.core.plan.data import Plan
from hocket.runtime.averaging.known import Averaging
from hocket.runtime.averaging.table import Table, agree
from hocket.runtime.channels.host_arrays import from_host, to_host
from hocket.runtime.channels.late import late_specs
from hocket.runtime.host_calls.services import Services
from hocket.runtime.instance.segment import Segments
from hocket.runtime.launch import Command, Launcher, launcher_of
from hocket.runtime.launch.control import Answer, Answers, Failure, Local
from hocket.runtime.launch.hands import Hand, epitaph, has_ended
from hocket.runtime.launch.leaving import FINISH_SECONDS
from hocket.runtime.launch.seats import company, computes_on_gpu, seats_of
from hocket.runtime.launch.shared import Shared
from hocket.runtime.launch.starting import start_processes
from hocket.runtime.launch.watch import GRACE_SECONDS, LOOK_SECONDS, InstanceError, Watch
from hocket.runtime.launch.worker import Worker, serve
from hocket.runtime.observe.status import WORKING, counting, names
from hocket.runtime.observe.timeline import Span

RESERVE_SECONDS = 60.0


@dataclass
class Holdings:
    """What must be given back whatever becomes of a crew, or of Python."""

    launcher: Launcher
    shared: Shared
    slices: Slices
    grace: float
    workers: list[Worker]
    """The instances of this process; none where each has a process of its own."""
    hands: list[Hand] = field(default_factory=list)
    owner: int = field(default_factory=os.getpid)


class Crew:
    """The instances of a plan. None is started before there is a state to begin with."""

    def __init__(self, plan: Plan, launcher: Launcher | None = None) -> None:
        self.plan, self._launcher = plan, launcher or launcher_of(plan)
        here = plan.launch.one_process
        self.reductions: dict[str, Table] = {}
        self._shared = (
            Shared.here(plan) if here
            else Shared.alone(plan) if plan.launch.shares_memory == "none"
            else Shared.create(plan)
        )  # fmt: skip
        self.workers = _workers(plan, self._shared) if here else []
        self._answers: Answers = queue.SimpleQueue()
        self._at_work: set[str] = set()
        """Those who run, of a free channel, until they are told to stop."""
        self._has_state, self._epoch = False, 0
        self._failure: BaseException | None = None
        slices = Slices(device for place in plan.places for device in place.on)
        self.slices = slices
        grace = FINISH_SECONDS + GRACE_SECONDS if computes_on_gpu(plan) else GRACE_SECONDS
        self._held = Holdings(self._launcher, self._shared, slices, grace, self.workers)
        self._end = weakref.finalize(self, end, self._held)

    @property
    def instances(self) -> list[Any]:
        """The instances of this process."""
        return [worker.instance for worker in self.workers]

    @property
    def statuses(self) -> np.ndarray:
        return self._shared.statuses

    @property
    def ledger(self) -> Any:
        return self._shared.ledger

    @property
    def is_well(self) -> bool:
        """Whether there is a state, and nothing has failed."""
        return self._failure is None and self._has_state

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any], services: Services) -> None:
        """Begin anew, from a state and from what was on its way."""
        is_new = not self._has_state
        if is_new:
            with self._or_end():
                self._start()
        self.pause()
        self._shared.clear()
        self._connect()
        home, here = self.plan.projection.placement.home, self.plan.launch.one_process
        arrays = leaves if here else {v: to_host(x) for v, x in leaves.items()}
        on_its_way = late if here else {name: to_host(x) for name, x in late.items()}
        find = services.at if here else services.elsewhere
        self._ask_each({
            f"{place}/{index}": (
                "load", {v: x for v, x in arrays.items() if home[v] == place}, on_its_way,
                find(index),
            )
            for place, index in names(self.plan)
        })  # fmt: skip
        if is_new and not here:
            self._compile_once()
        self._has_state = True

    def _connect(self) -> None:
        """Make all links anew, in two phases: nothing that was on its way arrives any more."""
        self._epoch += 1
        self.ask("disconnect")
        addresses = {key: at for mine in self.ask("listen") for key, at in mine.items()}
        self.ask("connect", addresses, self._epoch)

    def held(self) -> list[dict[int, Any]]:
        """The part of the state that each instance has."""
        found = self.ask("held")
        if self.plan.launch.one_process:
            return found
        values = self.plan.graph.values
        return [
            {v: jax.numpy.asarray(from_host(x, values[v])) for v, x in held.items()}
            for held in found
        ]

    def late(self) -> dict[str, Any]:
        """What is on its way in late channels."""
        found = {name: x for late in self.ask("late") for name, x in late.items()}
        if self.plan.launch.one_process:
            return found
        specs = late_specs(self.plan)
        return {
            name: jax.numpy.asarray(from_host(x, specs.get(name, x))) for name, x in found.items()
        }

    def run(self, count: int) -> list[dict[int, np.ndarray]]:
        """So many iterations of those who count them; others of a free channel go on meanwhile."""
        with self._or_end():
            if self.ledger:
                self.ledger.set_stop(False)
            counts = counting(self.plan)
            for hand, status in zip(self._held.hands, self.statuses, strict=True):
                if hand.name in self._at_work:
                    continue
                status["phase"] = WORKING  # until it has ended, also where it has not begun
                hand.control.tell("run", count if hand.place in counts else None)
                if hand.place not in counts:
                    self._at_work.add(hand.name)
            rows = self._wait_for(h.name for h in self._held.hands if h.place in counts)
        return [rows.get(hand.name, {}) for hand in self._held.hands]

    def pause(self) -> None:
        """Let everybody come to the end of an iteration."""
        with self._or_end():
            if self.ledger and self._at_work:
                self.ledger.set_stop(True)
                self._wait_for(self._at_work)
                self._at_work.clear()

    def record(self) -> None:
        """Keep a timeline from now on."""
        self.ask("record")

    def spans(self) -> tuple[list[Span], int]:
        """The timeline so far, and how many spans did not fit into it."""
        if self._failure:  # they may be gone with the processes
            return [], 0
        found = self.ask("spans")
        return [span for spans, _ in found for span in spans], sum(left for _, left in found)

    def close(self) -> None:
        """End all instances, by force where they do not end by themselves."""
        self._failure = self._failure or RuntimeError("this run has ended: make another executor.")
        self._end()
        self._shared.close()

    def ask(self, *command: Any, of: str = "") -> list[Any]:
        """Tell all instances, or those of a place, the same; their answers, in order."""
        mine = [f"{place}/{index}" for place, index in names(self.plan) if of in ("", place)]
        return self._ask_each(dict.fromkeys(mine, command))

    def _ask_each(self, commands: Mapping[str, tuple[Any, ...]]) -> list[Any]:
        """Tell each of these instances something; their answers, in order."""
        self.pause()
        # Threads of one process take turns: a state that is spread over several devices is cut by
        # programs on all of them, and two such programs at once would wait for each other.
        groups = [[name] for name in commands] if self.plan.launch.one_process else [list(commands)]
        answers: dict[str, Any] = {}
        with self._or_end():
            for group in groups:
                for hand in self._held.hands:
                    if hand.name in group:
                        hand.control.tell(*commands[hand.name])
                answers |= self._wait_for(group)
        return [answers[name] for name in commands]

    def _start(self) -> None:
        seats = seats_of(self.plan)
        self._launcher.reserve(seats, RESERVE_SECONDS)
        if self.workers:
            for worker, seat in zip(self.workers, seats, strict=True):
                control = Local()
                work = partial(serve, worker, control.commands, self._answers)
                member = self._launcher.start(seat, Command(work=work))
                self._held.hands.append(Hand(seat.name, member, control))
            return
        start_processes(
            self.plan, self._launcher, seats, self._shared, self.slices, self._answers,
            self._held.hands,
        )  # fmt: skip
        seen = self._wait_for(hand.name for hand in self._held.hands)
        for place, index in names(self.plan):
            for device in self.plan.place(place).share(index):
                self.slices.verify(device, seen[f"{place}/{index}"])
        for place in sorted(self.plan.averaging):
            ask = partial(self.ask, "averages", of=place)
            self.reductions[place] = agree(Averaging.of(self.plan, place), ask)

    def _compile_once(self) -> None:
        """One of the replicas on a GPU compiles for all, and leaves the others what it compiled.

        Compilers on one GPU at a time would time each other's kernels when they choose among them.
        """
        first = {f"{place.name}/0" for place in self.plan.places if place.replicas > 1}
        if computes_on_gpu(self.plan):
            self._ask_each(dict.fromkeys(sorted(first), ("compile",)))

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """Within, any failure ends all instances; a run that failed stays failed."""
        if self._failure:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            self.close()
            raise

    def _wait_for(self, instances: Iterable[str]) -> dict[str, Any]:
        """An answer of each of these; the first failure of any instance is raised."""
        missing, found = set(instances), {}
        watch = Watch(self.plan, self.statuses)
        while missing:
            try:
                answer = self._answers.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._check_alive()
            else:
                found[answer.instance] = self._content(answer)
                missing.discard(answer.instance)
            watch.look()
        return found

    def _content(self, answer: Answer) -> Any:
        if answer.outcome == "done":
            return answer.content
        if answer.outcome == "gone":
            hand = next(hand for hand in self._held.hands if hand.name == answer.instance)
            raise InstanceError(epitaph(hand.name, hand.member))
        failure: Failure = answer.content
        shared = company(self.plan, answer.instance) if "CUDA" in failure.text else ""
        raise InstanceError(
            f"the instance `{answer.instance}` failed:\n{failure.text}{shared}"
        ) from failure.error

    def _check_alive(self) -> None:
        """A process that is gone closes its connection, unless one that it has forked holds it."""
        for hand in self._held.hands:
            if hand.member.poll() is not None and self._answers.empty():
                raise InstanceError(epitaph(hand.name, hand.member))


def _workers(plan: Plan, shared: Shared) -> list[Worker]:
    """The instances of a plan in this process; replicas of a place share what is compiled."""
    segments = {place.name: Segments() for place in plan.places}
    return [
        Worker(plan, place, index, shared, segments=segments[place]) for place, index in names(plan)
    ]


def end(held: Holdings) -> None:
    """Let every instance end, by force where it does not within the grace; then its slices."""
    if os.getpid() != held.owner:  # a fork of the process that they belong to
        return
    if held.shared.ledger:
        held.shared.ledger.close()
    for worker in held.workers:
        worker.disconnect()
    for hand in held.hands:
        hand.control.close()  # which ends it, whatever it is doing
    deadline = time.monotonic() + held.grace
    at_rest = {hand.name: has_ended(hand.member, deadline) for hand in held.hands}
    for worker in held.workers:
        worker.end(at_rest=at_rest.get(worker.name, True))  # True: it was never started
    held.hands.clear()
    held.launcher.release()
    held.slices.close()
    if held.shared.arena:
        held.shared.arena.close()
