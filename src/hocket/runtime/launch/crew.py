"""The running instances of a plan: send them commands, and gather their answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.cluster.slices import Slices
from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.runtime.averaging.known import Averaging
from hocket.runtime.averaging.table import WayTable, agree
from hocket.runtime.channels.late import late_specs
from hocket.runtime.host_calls.services import Services
from hocket.runtime.launch import Launcher, launcher_of
from hocket.runtime.launch.ending import Resources
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.nodes import LEASE_SECONDS
from hocket.runtime.launch.seats import uses_accelerator
from hocket.runtime.launch.shutdown import FINISH_SECONDS
from hocket.runtime.launch.starting import start
from hocket.runtime.launch.watch import GRACE_SECONDS, Watch
from hocket.runtime.launch.worker import all_from_host, all_to_host, workers_of
from hocket.runtime.observe.status import WORKING, counting, names
from hocket.system.children import at_end


class Crew:
    """The instances of a plan. The first `load` starts them."""

    def __init__(
        self, plan: Plan, launcher: Launcher | None = None, lease: float = LEASE_SECONDS
    ) -> None:
        launcher = launcher or launcher_of(plan)
        self.plan, self.reductions = plan, dict[str, WayTable]()
        memory = PlanMemory.create(plan)
        self.slices = Slices(device for place in plan.places for device in place.on)
        self.workers = workers_of(plan, memory) if plan.launch.one_process else []
        # An instance on a GPU gets more time, to finish its current program (`shutdown.py`).
        grace = FINISH_SECONDS + GRACE_SECONDS if uses_accelerator(plan) else GRACE_SECONDS
        self._held = Resources(launcher, memory, self.slices, grace, self.workers, lease=lease)
        self._watch = Watch(plan, memory, self._held.running, lease)
        self._at_work: set[str] = set()
        """The names of the instances that work until told to stop. Only free plans have any."""
        self._has_state, self._epoch = False, 0
        self._failure: BaseException | None = None
        self._release = at_end(self, self._held.release)

    def keep_logs(self, folder: Path) -> None:
        """Keep what instances on other nodes print in files of this folder. Call before `load`."""
        self._held.logs = folder

    @property
    def instances(self) -> list[Any]:
        """The instances that run in this process."""
        return [worker.instance for worker in self.workers]

    @property
    def statuses(self) -> np.ndarray:
        return self._held.memory.statuses

    @property
    def ledger(self) -> Any:
        return self._held.memory.ledger

    @property
    def is_well(self) -> bool:
        """True once a state has been loaded, as long as nothing has failed."""
        return self._failure is None and self._has_state

    def load(
        self, leaves: Mapping[ValueId, Any], late: Mapping[str, Any], services: Services
    ) -> None:
        """Continue from a saved state, and from the messages that were then on their way.

        The first call starts the instances.
        """
        is_new, here = not self._has_state, self.plan.launch.one_process
        if is_new:
            with self._or_end():
                self._start()
        self.pause()
        # All instances rest now, so the ledger and the links do not change during an iteration.
        self._held.memory.clear()
        self._connect()
        if not here:
            leaves, late = all_to_host(leaves), all_to_host(late)
        find = services.at if here else services.elsewhere
        home, commands = self.plan.projection.placement.home, {}
        for place, index in names(self.plan):
            mine = {v: x for v, x in leaves.items() if home[v] == place}
            commands[f"{place}/{index}"] = "load", mine, late, find(index)
        self._ask_each(commands)
        if is_new and not here:
            self._compile_once()
        self._has_state = True

    def held(self) -> list[dict[ValueId, Any]]:
        """Return the part of the state that each instance holds."""
        parts = self.ask("held")
        if self.plan.launch.one_process:
            return parts
        values = {ValueId(v): x for v, x in enumerate(self.plan.graph.values)}
        return [jax.tree.map(jnp.asarray, all_from_host(held, values)) for held in parts]

    def late(self) -> dict[str, Any]:
        """Return the arrays that must be saved besides the state, such as messages on their way."""
        late = {name: x for mine in self.ask("late") for name, x in mine.items()}
        return late if self.plan.launch.one_process else all_from_host(late, late_specs(self.plan))

    def run(self, count: int) -> list[dict[ValueId, np.ndarray]]:
        """Run `count` iterations, and return the metrics of each instance.

        In a free plan `count` is the number of the learner's iterations. Makers begin with the
        first call, and work until `pause`, also between two calls.
        """
        with self._or_end():
            if self.ledger:
                self.ledger.set_stop(False)
            counts, running = counting(self.plan), self._held.running
            for instance, status in zip(running, self.statuses, strict=True):
                if instance.name in self._at_work:
                    continue
                # Set already here, because instances that wait for an idle one would look stuck.
                status["phase"] = WORKING
                instance.tell(("run", count if instance.place in counts else None))
                if instance.place not in counts:
                    self._at_work.add(instance.name)
            rows = self._watch.gather(x.name for x in running if x.place in counts)
        return [rows.get(instance.name, {}) for instance in running]

    def pause(self) -> None:
        """Wait until all instances of a free plan have ended their iteration and stopped."""
        with self._or_end():
            if self.ledger and self._at_work:
                self.ledger.set_stop(True)
                self._watch.gather(self._at_work)
                self._at_work.clear()

    def ask(self, *command: Any, of: str = "") -> list[Any]:
        """Send a command to all instances, or to those of the place `of`. Return their answers."""
        chosen = [f"{place}/{index}" for place, index in names(self.plan) if of in ("", place)]
        return self._ask_each(dict.fromkeys(chosen, command))

    def close(self) -> None:
        """End all instances, by force if they do not end by themselves."""
        self._failure = self._failure or RuntimeError("this run has ended: make another executor.")
        self._release()

    def _start(self) -> None:
        start(self.plan, self._held, self._watch)
        for place in sorted(self.plan.averaging - self.plan.grouped):
            ask = partial(self.ask, "averages", of=place)
            self.reductions[place] = agree(Averaging.of(self.plan, place), ask)

    def _connect(self) -> None:
        """Make all links anew: all instances listen, then connect. Drop messages on their way."""
        self._epoch += 1
        self.ask("disconnect")
        addresses = {key: at for mine in self.ask("listen") for key, at in mine.items()}
        self.ask("connect", addresses, self._epoch)

    def _compile_once(self) -> None:
        """On a GPU, have the first replica of each place compile; the others use its cache.

        Compilers time kernels to choose among them. If several compiled on one GPU at once, each
        would measure the others' work, too.
        """
        first = {f"{place.name}/0" for place in self.plan.places if place.replicas > 1}
        if uses_accelerator(self.plan):
            self._ask_each(dict.fromkeys(sorted(first), ("compile",)))

    def _ask_each(self, commands: Mapping[str, tuple[Any, ...]]) -> list[Any]:
        """Send each instance its command. Return the answers in the order of the commands."""
        self.pause()
        # Threads of one process get the command one after another. To cut a state that is spread
        # over several devices, each thread runs a program on all, and two such programs deadlock.
        groups = [[name] for name in commands] if self.plan.launch.one_process else [list(commands)]
        answers: dict[str, Any] = {}
        with self._or_end():
            for group in groups:
                for instance in self._held.running:
                    if instance.name in group:
                        instance.tell(commands[instance.name])
                answers |= self._watch.gather(group)
        return [answers[name] for name in commands]

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """If the body of this context fails, end all instances.

        Every later entry into this context raises the same error.
        """
        if self._failure:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            self.close()
            raise
