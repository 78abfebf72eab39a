"""The makers of samples in a free plan, and their helpers: when each may begin an iteration.

In a plan with one maker, other places may work for the maker, such as one that runs the
environments in which the maker acts. The instances of these places are the helpers.
"""

from __future__ import annotations

from collections import deque

from hocket.runtime.channels.links import versions
from hocket.runtime.free.learner import SampleTaker
from hocket.runtime.free.ledger import Ledger
from hocket.runtime.free.newest import Newest
from hocket.runtime.instance.account import Wait
from hocket.runtime.instance.instance import Instance
from hocket.runtime.observe.status import SENDING


class Maker:
    """The rule for a maker: it begins an iteration as soon as the ledger has room for a sample.

    Each sample is made with the newest version of the parameters.
    """

    def __init__(self, instance: Instance, ledger: Ledger, newest: Newest, wait: Wait) -> None:
        self._ledger, self._newest, self._index = ledger, newest, instance.index
        self._inbox, self._versions = instance.inbox, versions(instance.plan)
        # One message holds a whole version, from which each transfer picks its own values.
        version = [v for t in self._versions for v in t.values]
        for t in self._versions:
            self._inbox.sources[t.id] = (0,)
            self._inbox.expect(t, [version], packed=newest.packed)
        self.wait = wait._replace(ready=lambda: ledger.may_begin(self._index))

    def begin(self) -> bool:
        if not self._ledger.begin(self._index):
            return False
        version, message = self._newest.read()
        self._ledger.made_with(self._index, version)
        for t in self._versions:
            self._inbox.lines[t.id, 0] = deque([message])  # as if a link had brought it
        return True

    def end(self) -> None:
        self._ledger.end(self._index)


class Helper:
    """The rule for a helper: it may begin its part of a sample once the maker has begun it."""

    def __init__(self, instance: Instance, ledger: Ledger, wait: Wait) -> None:
        self._ledger, self._status = ledger, instance.status
        self._place, self._index = instance.place, instance.index
        self.wait = wait._replace(ready=self._may_begin)

    def begin(self) -> bool:
        return bool(self._ledger.led() > self._status["iteration"])

    def end(self) -> None:
        self._ledger.help(self._place, self._index)

    def _may_begin(self) -> bool:
        # Read `stopped`, not `stop`: until the maker sees `stop` it may begin one more sample, and
        # its helpers must make their parts of that.
        return self.begin() or bool(self._ledger.numbers["stopped"][0])


def take_part(instance: Instance, ledger: Ledger, newest: Newest) -> None:
    """Make an instance the learner, a maker or a helper of a free plan."""
    plan = instance.plan
    assert plan.free
    if instance.place == plan.free.learner:
        instance.learning = learner = SampleTaker(instance, ledger, newest)
        instance.interpreter.learning = instance.interpreter.outbox = learner
        return
    sample = next(t for t in plan.projection.transfers if plan.free.is_sample(t))
    wait = Wait(SENDING, sample, (0,), until=ledger.wait)
    if instance.place == plan.free.maker:
        instance.turns = Maker(instance, ledger, newest, wait)
    else:
        instance.turns = Helper(instance, ledger, wait)
