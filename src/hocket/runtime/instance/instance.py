"""One running replica of a place: how its parts fit together, and the commands it obeys."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.core.projection.host_loops import calls_inside, uses_host
from hocket.core.projection.instructions import Compute
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.channels import Address
from hocket.runtime.channels.links import LinkKey
from hocket.runtime.host_calls.calls import HostFunctions, is_one_cpu
from hocket.runtime.instance.account import Account, Wait
from hocket.runtime.instance.inbox import InstanceInbox
from hocket.runtime.instance.interpreter import Interpreter, Learning
from hocket.runtime.instance.metrics import MetricRows
from hocket.runtime.instance.outbox import InstanceOutbox
from hocket.runtime.instance.programs import Programs
from hocket.runtime.instance.segment import Segments
from hocket.runtime.instance.store import Store
from hocket.runtime.instance.wiring import Spaces, ends

AGES = ValueId(-1)
"""The key of the sample ages in a learner's metrics, where all other keys are ids of values."""
NO_SPACES: Spaces = {}


class Turns(Protocol):
    """The rules by which an instance may begin an iteration, in a plan with lag=free."""

    wait: Wait
    """The condition to wait for before each iteration."""

    def begin(self) -> bool:
        """Begin an iteration. Return False if this instance has no more iterations to do."""
        ...

    def end(self) -> None:
        """End an iteration."""
        ...


class Instance:
    """Replica `index` of `place`. It runs the program of the place."""

    def __init__(
        self, plan: Plan, place: str, index: int, status: Any, spaces: Spaces = NO_SPACES,
        average: Reduction | None = None, segments: Segments | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.place, self.index, self.status = plan, place, index, status
        self.name, self._average = f"{place}/{index}", average
        self._code, placement = plan.projection.programs[place], plan.projection.placement
        self.store = Store(plan, place, index)
        self.programs = Programs(plan, place, self.store, average, segments or Segments())
        self.account = Account(plan, place, index, status, average)
        self.ends = list(ends(plan, place, index, spaces, self.account.work))
        receiving = [end for end in self.ends if not end.sends]
        self.inbox = InstanceInbox(plan, receiving, self.store, self.account)
        sending = [end for end in self.ends if end.sends]
        outbox = InstanceOutbox(plan, sending, self.store, self.account)
        inside = (
            is_one_cpu(self.store.devices)
            and not self.store.grouped
            and calls_inside(self.programs.graph, self._code, plan.cut_loops)
        )
        self.hosts = HostFunctions(self.name, inside=inside)
        self.interpreter = Interpreter(
            plan, self.store, self.programs, self.hosts, self.inbox, outbox, self.account
        )
        self.turns: Turns | None = None
        self.learning: Learning | None = None
        self._reports = [v for v, at in placement.reports.items() if at == place]

    def listen(self) -> dict[LinkKey, Address]:
        """Prepare to receive messages. Return the address of each link that ends here."""
        return {end.link.key: end.listen() for end in self.ends if not end.sends}

    def connect(self, addresses: Mapping[LinkKey, Address], epoch: int) -> None:
        """Connect this instance's end of every link. Call this when all instances listen."""
        self.account.work.forget()
        for end in self.ends:
            end.connect(addresses[end.link.key], epoch)

    def disconnect(self) -> None:
        """Close this instance's end of every link. This also ends waits at the other ends."""
        for end in self.ends:
            end.close()

    def load(self, leaves: Mapping[ValueId, Any], late: Mapping[str, Any]) -> None:
        """Take this instance's part of a state, and begin at iteration 0.

        The dictionary `late` joins what the method `late` returned in all instances.
        """
        self.status["iteration"] = 0
        self.inbox.load(late)
        if self.learning:
            self.learning.load(late)
        self.hosts.load(late if uses_host(self._code) else {})
        self.store.load(leaves)

    def late(self) -> dict[str, Any]:
        """Return the arrays to save besides the state.

        These are the messages that wait in this instance's late channels, the samples that it has
        not learned from yet, and the states of its host functions.
        """
        samples = self.learning.late() if self.learning else {}
        return {**self.inbox.late(), **samples, **self.hosts.late()}

    def run(self, count: int | None) -> dict[ValueId, np.ndarray]:
        """Run `count` iterations, and return the metrics of this place.

        If `count` is None, run until `turns` has no more iterations. A metric has shape
        `[iterations, ...]`. The ages of samples have the key `AGES`.
        """
        self.account.begin()
        try:
            rows = MetricRows()
            for wait in self.steps(count, rows):
                if wait is not None:
                    self.account.wait(wait)
            return self.metrics(rows)
        finally:
            self.account.end()

    def steps(self, count: int | None, rows: MetricRows) -> Iterator[Wait | None]:
        """Run iterations in steps. Yield before each possible wait for another instance."""
        store, turns = self.store, self.turns
        for _ in itertools.count() if count is None else range(count):
            yield turns.wait if turns else None
            if turns and not turns.begin():
                break
            values = {**self.programs.graph.constants, **store.values}
            yield from self.interpreter.run(self._code, values)
            if turns:
                turns.end()
            store.keep(values)
            self.status["iteration"] += 1
            self.account.count_time()
            if self._reports:
                rows.add([store.whole(v, values[v]) for v in self._reports])
        self.inbox.catch_up()
        self.account.work.settle()
        # Wait, so that this block's time includes this work.
        jax.block_until_ready(list(store.values.values()))
        if self._average:
            self._average.check()
        self.account.count_averages(time.perf_counter())

    def metrics(self, rows: MetricRows) -> dict[ValueId, np.ndarray]:
        """Return each metric as one array over the iterations in `rows`."""
        columns = dict(zip(self._reports, rows.columns(), strict=True))
        return {**columns, AGES: self.learning.ages()} if self.learning else columns

    def compile(self) -> None:
        """If the program of an iteration begins with a segment, compile that segment."""
        if isinstance(step := self._code[0], Compute):
            self.programs.compile(step, {**self.programs.graph.constants, **self.store.values})
