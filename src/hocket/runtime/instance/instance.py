"""One running replica of a place: its parts, and what a run commands."""

from __future__ import annotations

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
"""Among the metrics of an instance, which go by the numbers of values."""
NO_SPACES: Spaces = {}


class Turns(Protocol):
    """When an iteration may begin, in a plan where nobody waits for a version."""

    wait: Wait
    """What an iteration has to wait for."""

    def begin(self) -> bool:
        """Begin an iteration; False if there is none any more."""
        ...

    def end(self) -> None:
        """An iteration has ended."""
        ...


class Instance:
    """Runs the program of a place, as replica `index` of it."""

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
        to, by = ([end for end in self.ends if end.sends == sends] for sends in (True, False))
        self.inbox = InstanceInbox(plan, by, self.store, self.account)
        outbox = InstanceOutbox(plan, to, self.store, self.account)
        inside = is_one_cpu(self.store.devices) and not self.store.grouped
        inside = inside and calls_inside(self.programs.graph, self._code, plan.cut_loops)
        self.hosts = HostFunctions(self.name, inside=inside)
        self.interpreter = Interpreter(
            plan, self.store, self.programs, self.hosts, self.inbox, outbox, self.account
        )
        self.turns: Turns | None = None
        self.learning: Learning | None = None
        self._reports = [v for v, at in placement.reports.items() if at == place]

    def listen(self) -> dict[LinkKey, Address]:
        """Get ready to receive; the address of each link from which this instance does."""
        return {end.link.key: end.listen() for end in self.ends if not end.sends}

    def connect(self, addresses: Mapping[LinkKey, Address], epoch: int) -> None:
        """Connect all ends, when everybody listens."""
        self.account.work.forget()
        for end in self.ends:
            end.connect(addresses[end.link.key], epoch)

    def disconnect(self) -> None:
        """Close all ends; those at other instances may be closed too."""
        for end in self.ends:
            end.close()

    def load(self, leaves: Mapping[ValueId, Any], late: Mapping[str, Any]) -> None:
        """Take this instance's part of the state, and of what was on its way.

        `late` is what `late` of all instances had.
        """
        self.status["iteration"] = 0
        self.inbox.load(late)
        if self.learning:
            self.learning.load(late)
        self.hosts.load(late if uses_host(self._code) else {})
        self.store.load(leaves)

    def late(self) -> dict[str, Any]:
        """What is on its way to this instance, and what its host functions keep."""
        samples = self.learning.late() if self.learning else {}
        return {**self.inbox.late(), **samples, **self.hosts.late()}

    def run(self, count: int | None) -> dict[ValueId, np.ndarray]:
        """So many iterations, or until there are no more; the metrics that this place makes.

        Those are `[count, ...]`, of iterations by number; of samples, their ages as `AGES`.
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
        """Iterations, one step at a time; yields before it may have to wait for others."""
        done, store, turns = 0, self.store, self.turns
        while count is None or done < count:
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
            done += 1
            if self._reports:
                rows.add([store.whole(v, values[v]) for v in self._reports])
        self.inbox.catch_up()
        self.account.work.settle()
        jax.block_until_ready(list(store.values.values()))  # whoever counts, counts all of it
        if self._average:
            self._average.check()
        self.account.count_averages(time.perf_counter())

    def metrics(self, rows: MetricRows) -> dict[ValueId, np.ndarray]:
        """What some iterations have reported, each metric in one array."""
        columns = dict(zip(self._reports, rows.columns(), strict=True))
        return {**columns, AGES: self.learning.ages()} if self.learning else columns

    def compile(self) -> None:
        """Compile what an iteration begins with."""
        if isinstance(step := self._code[0], Compute):
            self.programs.compile(step, {**self.programs.graph.constants, **self.store.values})
