"""The learner of a free plan: it publishes new parameters, and takes samples that are ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Receive, Transfer
from hocket.runtime.channels.host_arrays import from_host, host_spec
from hocket.runtime.channels.late import SAMPLE, array_names, sample_name
from hocket.runtime.channels.links import Link, links, versions
from hocket.runtime.free.ledger import Ledger
from hocket.runtime.free.newest import Newest
from hocket.runtime.instance.account import Wait
from hocket.runtime.instance.instance import Instance
from hocket.runtime.instance.store import Values
from hocket.runtime.observe.status import IDLE, RECEIVING


class SampleTaker:
    """The part of a learner that sends new parameters, and chooses the samples to receive.

    New samples arrive through the inbox's links. Samples from a checkpoint wait in the inbox's
    queues, `InstanceInbox.lines`.
    """

    def __init__(self, instance: Instance, ledger: Ledger, newest: Newest) -> None:
        plan, place = instance.plan, instance.place
        self._ledger, self._newest = ledger, newest
        self._account, self._inbox = instance.account, instance.inbox
        self._links, self._names = sample_links(plan), array_names(plan, links(plan))
        assert plan.free
        self._made = [t.id for t in plan.projection.transfers if plan.free.is_any(t)]
        self._version: dict[int, list[Any]] = {t.id: [] for t in versions(plan)}
        self._ages: list[list[int]] = []
        code = plan.projection.programs[place]
        self.first = next(step.transfer for step in code if isinstance(step, Receive))
        self._choice: list[int] | None = None
        self._wait = Wait(RECEIVING, self.first, (0,), self._may_take, ledger.wait)

    def send(self, transfer: Transfer, values: Values) -> None:
        """Keep a part of the new parameters, which `publish` publishes as a whole."""
        message = jax.block_until_ready([values[v] for v in transfer.values])
        self._version[transfer.id] = message
        self._account.sent(transfer, sum(x.size * x.dtype.itemsize for x in message))

    def publish(self) -> Wait:
        """Publish what `send` was given. Return the condition to wait for before `take`."""
        version = int(self._account.status["iteration"])
        # Write first, so that a maker that sees the number finds this version or a newer one.
        self._newest.write(version, [x for part in self._version.values() for x in part])
        self._ledger.publish(version)
        return self._wait

    def take(self) -> None:
        """Take the chosen samples. The inbox then receives them from their makers.

        They were chosen when the condition that `publish` returned came true.
        """
        # Choosing again here could fail: a maker may since have announced a sample with an outdated
        # version, and until it corrects the version (`Ledger.made_with`), `choice` may return None.
        makers = self._choice
        assert makers is not None
        self._ages.append([self._ledger.take(maker) for maker in makers])
        self._inbox.sources |= dict.fromkeys(self._made, makers)

    def ages(self) -> np.ndarray:
        """Return, for each iteration since the last call, the ages of its samples."""
        ages, self._ages = np.array(self._ages, int).reshape(-1, self._ledger.batch), []
        return ages if self._ledger.batch > 1 else ages[:, 0]

    def late(self) -> dict[str, Any]:
        """Return the samples not yet learned from. Call only while no instance works."""
        n, late = self._ledger.numbers, {}
        for maker, mine in enumerate(self._links):
            taken = int(n["taken"][maker])
            for k in range(int(n["made"][maker]) - taken):
                made_with = n["made_with"][maker, (taken + k) % self._ledger.window]
                age = np.array(self._account.status["iteration"] - made_with)
                late[sample_name(maker, k, "age")] = age
                for link in mine:
                    # Move the message off the link into a queue, where `receive` looks first.
                    self._inbox.fill(link.key[:2], k + 1)
                    names = (sample_name(maker, k, name) for name in self._names[link.key])
                    late |= zip(names, self._inbox.lines[link.key[:2]][k], strict=True)
        self._account.status["phase"] = IDLE  # `fill` has set it to RECEIVING
        return late

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew with the saved samples in `late`, which the ledger counts as finished."""
        n, self._ages = self._ledger.numbers, []
        self._ledger.clear()
        for maker, mine in enumerate(self._links):
            count = 0
            while (age := sample_name(maker, count, "age")) in late:
                # Iterations count from 0 again, so the versions of saved samples are negative.
                n["made_with"][maker, count] = -int(late[age])
                for link in mine:
                    self._put_by(link, maker, count, late)
                count += 1
            for field in ("loaded", "begun", "made"):
                n[field][maker] = count

    def _may_take(self) -> bool:
        self._choice = self._ledger.choice()
        return self._choice is not None

    def _put_by(self, link: Link, maker: int, number: int, late: Mapping[str, Any]) -> None:
        """Queue one link's part of a saved sample, as if the link had delivered it."""
        saved = [late[sample_name(maker, number, name)] for name in self._names[link.key]]
        arrays = [from_host(x, spec) for x, spec in zip(saved, link.arrays, strict=True)]
        message = self._inbox.ends[link.key[:2]].message(arrays)
        self._inbox.lines.setdefault(link.key[:2], deque()).append(message)


def sample_links(plan: Plan) -> list[list[Link]]:
    """Return, for each maker, the links through which its samples reach the learner.

    Links from its helpers are among them, since they carry parts of the sample.
    """
    assert plan.free
    free, every = plan.free, [x for x in links(plan) if plan.free.is_sample(x.transfer)]
    return [
        [link for link in every if not free.is_any(link.transfer) or link.source == maker]
        for maker in range(free.makers)
    ]


def fitting_samples(plan: Plan, late: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved samples if a plan can learn from all of them, else an empty dictionary.

    The plan must have all makers of these samples, and make samples of the same shapes. No sample
    may be too old by the time the learner takes it.
    """
    saved = {name: x for name, x in late.items() if name.startswith(SAMPLE)}
    free = plan.free
    if not (saved and free):
        return {}
    # A sample with k older ones is taken k // batch iterations from now, and ages by as many.
    ages = {name: int(x) for name, x in saved.items() if name.endswith("-age")}
    oldest_first = enumerate(sorted(ages.values(), reverse=True))
    in_time = all(k // free.batch + age <= free.max_age for k, age in oldest_first)
    names, by_maker = array_names(plan, links(plan)), sample_links(plan)
    shapes: dict[str, Any] = dict.fromkeys(ages, ())
    for sample in ages:
        maker, k = map(int, sample.removeprefix(SAMPLE).split("-")[:2])
        if maker >= free.makers or k >= free.window:
            return {}
        for link in by_maker[maker]:
            pairs = zip(names[link.key], link.arrays, strict=True)
            shapes |= {sample_name(maker, k, name): host_spec(spec)[0] for name, spec in pairs}
    fits = in_time and {name: np.shape(x) for name, x in saved.items()} == shapes
    return saved if fits else {}
