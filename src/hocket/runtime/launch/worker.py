"""One instance, with a method for each command that a run gives it.

A run may be in the same process or in another one: `Worker` is told and answers in the values that
an instance holds; `RemoteWorker` says the same in arrays of the host, which a connection carries.
"""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Mapping
from typing import Any

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
from hocket.runtime.launch.shared import Shared
from hocket.runtime.observe.status import names
from hocket.system.events import Closed

Find = Callable[[Service], At]
"""Where an instance finds a service."""


class Worker:
    """An instance of a plan. Commands come one at a time; `end` may come meanwhile."""

    def __init__(
        self, plan: Plan, place: str, index: int, shared: Shared,
        average: Reduction | None = None, segments: Segments | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.shared, self.average = plan, shared, average
        status = shared.statuses[names(plan).index((place, index))]
        self.instance = Instance(plan, place, index, status, shared.spaces, average, segments)
        if shared.ledger and shared.newest:
            take_part(self.instance, shared.ledger, shared.newest)

    @property
    def name(self) -> str:
        return self.instance.name

    def disconnect(self) -> None:
        """End every wait for a message, here and at the other ends; from any thread."""
        self.instance.disconnect()

    def listen(self) -> dict[LinkKey, Address]:
        """Be ready for messages: an address for every link that ends here."""
        return self.instance.listen()

    def connect(self, addresses: Mapping[LinkKey, Address], epoch: int) -> None:
        """Open every link of this instance, given the addresses of all."""
        self.instance.connect(addresses, epoch)

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any], find: Find) -> None:
        """Go on from here: this instance's part of a state, and what is on its way to it."""
        self.instance.hosts.find = find
        self.instance.load(leaves, late)

    def compile(self) -> None:
        """Compile what an iteration begins with."""
        self.instance.compile()

    def averages(self, command: str, *arguments: Any) -> Any:
        """How replicas come to average: the commands of `averaging.table.agree`."""
        assert self.average
        return getattr(self.average, command)(*arguments)

    def run(self, count: int | None) -> Any:
        """So many iterations, or until the ledger says stop; the metrics of all of them."""
        return self.instance.run(count)

    def late(self) -> dict[str, Any]:
        return self.instance.late()

    def held(self) -> dict[int, Any]:
        return self.instance.store.held()

    def record(self) -> None:
        self.instance.account.spans = []

    def spans(self) -> Any:
        """What was done when, and how many spans were left out."""
        account = self.instance.account
        return account.spans or [], account.spans_left_out

    def end(self, *, at_rest: bool) -> None:
        """Close what the instance keeps open; `at_rest`: nobody works in it any more."""
        self.instance.hosts.end(at_rest=at_rest)


class RemoteWorker(Worker):
    """An instance whose run is in another process: what they say to each other are host arrays."""

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any], find: Find) -> None:
        values, specs = self.plan.graph.values, late_specs(self.plan)
        super().load(
            {v: from_host(x, values[v]) for v, x in leaves.items()},
            {name: from_host(x, specs.get(name, x)) for name, x in late.items()},
            find,
        )

    def late(self) -> dict[str, Any]:
        return {name: to_host(x) for name, x in super().late().items()}

    def held(self) -> dict[int, Any]:
        return {v: to_host(x) for v, x in super().held().items()}


def serve(
    worker: Worker, commands: queue.SimpleQueue[tuple[Any, ...] | None], answers: Answers
) -> None:
    """Do as told, in this process, until there is nobody to tell."""
    while (command := commands.get()) is not None:
        name, *arguments = command
        try:
            answers.put(Answer(worker.name, "done", getattr(worker, name)(*arguments)))
        except Closed:
            pass  # the run is over, and does not wait for this answer
        except BaseException as error:  # noqa: BLE001 (reported with the instance's name)
            failure = Failure(traceback.format_exc(), error)
            answers.put(Answer(worker.name, "failed", failure))
