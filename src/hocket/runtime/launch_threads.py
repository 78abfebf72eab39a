"""The instances of a plan as threads of this process."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hocket.core.plan import Plan
from hocket.runtime.channel import Closed
from hocket.runtime.health import GRACE_SECONDS, LOOK_SECONDS, InstanceError, Watch
from hocket.runtime.instance import Instance
from hocket.runtime.route import Link, Route, links
from hocket.runtime.segment import Segments
from hocket.runtime.status import WORKING, names, new_statuses
from hocket.runtime.timeline import Span
from hocket.runtime.transport_device import DeviceToDevice
from hocket.runtime.transport_same import SameDevice


class Threads:
    """A thread for each instance; what crosses stays on the devices."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.statuses = plan, new_statuses(plan)
        self.pipes: dict[tuple[int, int, int], SameDevice] = {}
        segments = {place.name: Segments() for place in plan.places}
        self.instances = [
            Instance(plan, place, index, self.pipes, self.statuses[k], segments=segments[place])
            for k, (place, index) in enumerate(names(plan))
        ]
        self._failure: BaseException | None = None

    @property
    def is_well(self) -> bool:
        return self._failure is None and bool(self.pipes)

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any]) -> None:
        self.pipes.clear()
        self.pipes.update((link.key, self._pipe(link)) for link in links(self.plan))
        for instance in self.instances:
            instance.load(leaves, late)

    def held(self) -> list[dict[int, Any]]:
        if self._failure:
            raise self._failure
        return [instance.held() for instance in self.instances]

    def late(self) -> dict[str, Any]:
        late = [instance.late() for instance in self.instances]
        return {name: x for mine in late for name, x in mine.items()}

    def run(self, count: int) -> list[dict[int, np.ndarray]]:
        if self._failure:
            raise self._failure
        try:
            return self._run(count)
        except BaseException as error:
            self._failure = error
            self._close_pipes()
            raise

    def record(self) -> None:
        for instance in self.instances:
            instance.exchange.spans = []

    def spans(self) -> tuple[list[Span], int]:
        exchanges = [instance.exchange for instance in self.instances]
        found = [span for exchange in exchanges for span in exchange.spans or ()]
        return found, sum(exchange.spans_left_out for exchange in exchanges)

    def close(self) -> None:
        self._close_pipes()
        for instance in self.instances:
            instance.hosts.close()

    def _run(self, count: int) -> list[dict[int, np.ndarray]]:
        rows: dict[str, dict[int, np.ndarray]] = {}
        failures: list[tuple[Instance, BaseException, str]] = []

        def work(instance: Instance) -> None:
            try:
                rows[instance.name] = instance.run(count)
            except Closed:
                pass
            except BaseException as error:  # noqa: BLE001 (reported below, with the instance's name)
                failures.append((instance, error, traceback.format_exc()))
                self._close_pipes()

        self.statuses["phase"] = WORKING  # until it has ended, also where it has not begun
        threads = [
            threading.Thread(target=work, args=(i,), name=i.name, daemon=True)
            for i in self.instances
        ]
        for thread in threads:
            thread.start()
        watch, deadline = Watch(self.plan, self.statuses), math.inf
        while time.monotonic() < deadline and (alive := [t for t in threads if t.is_alive()]):
            alive[0].join(LOOK_SECONDS)
            watch.look()
            if failures:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if failures:
            instance, error, text = failures[0]
            raise InstanceError(f"the instance `{instance.name}` failed:\n{text}") from error
        return [rows[instance.name] for instance in self.instances]

    def _pipe(self, link: Link) -> SameDevice:
        """The transport for where the two ends are."""
        t, delay = link.transfer, self.plan.channel_of(link.transfer).delay
        source, target = (
            next(i for i in self.instances if (i.place, i.index) == end)
            for end in ((t.source, link.source), (t.target, link.target))
        )
        if source.mesh.devices.tolist() == target.mesh.devices.tolist():
            return SameDevice(link.slots, delay)
        route = Route.of(self.plan, t)
        if target.grouped or route.sources > route.targets:  # it is put together there first
            first = jax.sharding.SingleDeviceSharding(target.mesh.devices.flat[0])
            return DeviceToDevice(link.slots, [first] * len(link.values), delay)
        return DeviceToDevice(link.slots, [target.home(v) for v in link.values], delay)

    def _close_pipes(self) -> None:
        for pipe in self.pipes.values():
            pipe.close()
