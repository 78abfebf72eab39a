"""The instances of a plan as threads of this process."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.averaging.table import Table
from hocket.runtime.free.ledger import Board
from hocket.runtime.free.mailbox import make_exchange
from hocket.runtime.free.newest import LatestHere
from hocket.runtime.host_calls.services import Services
from hocket.runtime.instance.interpreter import Instance
from hocket.runtime.instance.segment import Segments
from hocket.runtime.launch.watch import GRACE_SECONDS, LOOK_SECONDS, InstanceError, Watch
from hocket.runtime.observe.status import WORKING, counting, names, new_statuses
from hocket.runtime.observe.timeline import Span
from hocket.system.events import Closed, ThreadEvent


class Threads:
    """A thread for each instance; what crosses stays on the devices."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.statuses = plan, new_statuses(plan)
        self.reductions: dict[str, Table] = {}
        self._epoch = 0
        self.board = Board(plan, ThreadEvent()) if plan.free else None
        segments = {place.name: Segments() for place in plan.places}
        latest = LatestHere()
        self.instances = [
            Instance(
                plan, place, index,
                make_exchange(plan, place, index, self.statuses[k], self.board, latest),
                segments=segments[place],
            )
            for k, (place, index) in enumerate(names(plan))
        ]  # fmt: skip
        self._threads: dict[str, threading.Thread] = {}
        self._rows: dict[str, dict[int, np.ndarray]] = {}
        self._failures: list[tuple[Instance, BaseException, str]] = []
        self._failure: BaseException | None = None

    @property
    def is_well(self) -> bool:
        return self._failure is None and self._epoch > 0

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any], services: Services) -> None:
        self.pause()
        self._connect()
        for instance in self.instances:
            instance.hosts.find = services.at(instance.index)
            instance.load(leaves, late)

    def held(self) -> list[dict[int, Any]]:
        self.pause()
        return [instance.held() for instance in self.instances]

    def late(self) -> dict[str, Any]:
        self.pause()
        late = [instance.late() for instance in self.instances]
        return {name: x for mine in late for name, x in mine.items()}

    def run(self, count: int) -> list[dict[int, np.ndarray]]:
        """So many iterations of those who count them; others of a free channel go on meanwhile."""
        with self._or_fail():
            if self.board:
                self.board.set_stop(False)
            for instance in self.instances:
                if instance.name not in self._threads:
                    instance.status["phase"] = WORKING  # until it has ended, also before it begins
                    counts = instance.place in counting(self.plan)
                    self._start(instance, count if counts else None)
            done = [i.name for i in self.instances if i.place in counting(self.plan)]
            self._wait_for(done)
        return [self._rows.pop(i.name, {}) for i in self.instances]

    def record(self) -> None:
        for instance in self.instances:
            instance.exchange.spans = []

    def spans(self) -> tuple[list[Span], int]:
        exchanges = [instance.exchange for instance in self.instances]
        found = [span for exchange in exchanges for span in exchange.spans or ()]
        return found, sum(exchange.spans_left_out for exchange in exchanges)

    def close(self) -> None:
        self._close_links()
        deadline = time.monotonic() + GRACE_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        for instance in self.instances:
            thread = self._threads.get(instance.name)
            instance.hosts.end(at_rest=thread is None or not thread.is_alive())

    def pause(self) -> None:
        """Let everybody come to the end of an iteration."""
        with self._or_fail():
            if self.board and self._threads:
                self.board.set_stop(True)
                self._wait_for(list(self._threads))

    @contextlib.contextmanager
    def _or_fail(self) -> Iterator[None]:
        """Within, any failure ends the run; a run that failed stays failed."""
        if self._failure:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            self._close_links()
            raise

    def _start(self, instance: Instance, count: int | None) -> None:
        def work() -> None:
            try:
                self._rows[instance.name] = instance.run(count)
            except Closed:
                pass
            except BaseException as error:  # noqa: BLE001 (reported with the instance's name)
                self._failures.append((instance, error, traceback.format_exc()))
                self._close_links()

        thread = threading.Thread(target=work, name=instance.name, daemon=True)
        self._threads[instance.name] = thread
        thread.start()

    def _wait_for(self, names: list[str]) -> None:
        """Until these have come to an end, or one of all has failed."""
        threads = [self._threads[name] for name in names]
        watch, deadline = Watch(self.plan, self.statuses), math.inf
        while time.monotonic() < deadline and (alive := [t for t in threads if t.is_alive()]):
            alive[0].join(LOOK_SECONDS)
            watch.look()
            if self._failures:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if self._failures:
            instance, error, text = self._failures[0]
            raise InstanceError(f"the instance `{instance.name}` failed:\n{text}") from error
        for name in names:
            del self._threads[name]

    def _connect(self) -> None:
        """Make all links anew, in two phases: nothing that was on its way arrives any more."""
        self._epoch += 1
        exchanges = [instance.exchange for instance in self.instances]
        for exchange in exchanges:
            exchange.disconnect()
        addresses = {key: at for exchange in exchanges for key, at in exchange.listen().items()}
        for exchange in exchanges:
            exchange.connect(addresses, self._epoch)

    def _close_links(self) -> None:
        for instance in self.instances:
            instance.exchange.disconnect()
        if self.board:
            self.board.close()
