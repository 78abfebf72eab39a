"""One instance, with a method for each command that a run gives it.

A `Worker` is in the run's process, and takes and returns values as the instance holds them. A
`RemoteWorker` is in another process, and takes and returns them as arrays of the host, which a
connection can carry.
"""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np

from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.core.program.service import At, Service
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.channels import Address
from hocket.runtime.channels.host_arrays import from_host, to_host
from hocket.runtime.channels.late import late_specs
from hocket.runtime.channels.links import LinkKey
from hocket.runtime.free.makers import take_part
from hocket.runtime.instance.instance import Instance
from hocket.runtime.instance.segment import Segments
from hocket.runtime.launch.control import Answer, Answers, Failure
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.observe.status import names
from hocket.system.events import Closed

Find = Callable[[Service], At]
"""The type of a function that returns where an instance finds a service."""

K = TypeVar("K", bound=Hashable)


class Worker:
    """An instance of a plan. One command runs at a time, but `end` may come during another."""

    def __init__(
        self, plan: Plan, place: str, index: int, memory: PlanMemory,
        average: Reduction | None = None, segments: Segments | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.average = plan, average
        status = memory.statuses[names(plan).index((place, index))]
        self.instance = Instance(plan, place, index, status, memory.links, average, segments)
        if memory.ledger and memory.newest:
            take_part(self.instance, memory.ledger, memory.newest)

    @property
    def name(self) -> str:
        return self.instance.name

    def disconnect(self) -> None:
        """End every wait for a message, here and at the other ends. Any thread may call this."""
        self.instance.disconnect()

    def listen(self) -> dict[LinkKey, Address]:
        """Get ready for messages, and return an address for every link that ends here."""
        return self.instance.listen()

    def connect(self, addresses: Mapping[LinkKey, Address], epoch: int) -> None:
        """Open every link of this instance, given the addresses of all links."""
        self.instance.connect(addresses, epoch)

    def load(self, leaves: Mapping[ValueId, Any], late: Mapping[str, Any], find: Find) -> None:
        """Load this instance's parts of a state and of `late`, the values saved besides a state."""
        self.instance.hosts.find = find
        self.instance.load(leaves, late)

    def compile(self) -> None:
        """Compile the first segment of an iteration."""
        self.instance.compile()

    def averages(self, command: str, *arguments: Any) -> Any:
        """Call a method of `Reduction`, which averages over the replicas of this place.

        `averaging.table.agree` uses this to choose the way in which all of them average.
        """
        assert self.average
        return getattr(self.average, command)(*arguments)

    def run(self, count: int | None) -> Any:
        """Run `count` iterations; if None, run until told to stop. Return all their metrics."""
        return self.instance.run(count)

    def late(self) -> dict[str, Any]:
        return self.instance.late()

    def held(self) -> dict[ValueId, Any]:
        return self.instance.store.held()

    def record(self) -> None:
        self.instance.account.spans = []

    def spans(self) -> Any:
        """Return this instance's spans, and the number of further spans that had no room."""
        account = self.instance.account
        return account.spans or [], account.spans_left_out

    def end(self, *, at_rest: bool) -> None:
        """Close what the instance keeps open. `at_rest` says that no thread works in it."""
        self.instance.hosts.end(at_rest=at_rest)


class RemoteWorker(Worker):
    """An instance in a process of its own. It takes and returns values as arrays of the host."""

    def load(self, leaves: Mapping[ValueId, Any], late: Mapping[str, Any], find: Find) -> None:
        mine = all_from_host(leaves, {ValueId(v): x for v, x in enumerate(self.plan.graph.values)})
        super().load(mine, all_from_host(late, late_specs(self.plan)), find)

    def late(self) -> dict[str, Any]:
        return all_to_host(super().late())

    def held(self) -> dict[ValueId, Any]:
        return all_to_host(super().held())


def all_to_host(arrays: Mapping[K, Any]) -> dict[K, np.ndarray]:
    """Copy the arrays of an instance to the host, to be sent through a connection."""
    return {name: to_host(x) for name, x in arrays.items()}


def all_from_host(arrays: Mapping[K, np.ndarray], specs: Mapping[K, Any]) -> dict[K, Any]:
    """Undo `all_to_host`, given the shapes and dtypes of the arrays.

    Only random keys need converting. An array without an entry in `specs` is returned unchanged.
    """
    return {name: from_host(x, specs.get(name, x)) for name, x in arrays.items()}


def workers_of(plan: Plan, memory: PlanMemory) -> list[Worker]:
    """Make a worker for each instance of a plan, all in this process.

    The replicas of a place share compiled programs.
    """
    segments = {place.name: Segments() for place in plan.places}
    return [
        Worker(plan, place, index, memory, segments=segments[place]) for place, index in names(plan)
    ]


def serve(
    worker: Worker, commands: queue.SimpleQueue[tuple[Any, ...] | None], answers: Answers
) -> None:
    """Carry out each command from a queue and answer it, until a command is None."""
    while (command := commands.get()) is not None:
        name, *arguments = command
        try:
            answers.put(Answer(worker.name, "done", getattr(worker, name)(*arguments)))
        except Closed:
            pass  # the run is over and waits for no answer
        except BaseException as error:  # noqa: BLE001 (the run reports it with the name)
            failure = Failure(traceback.format_exc(), error)
            answers.put(Answer(worker.name, "failed", failure))
