"""The outbox of an instance, which sends each target its part of every value."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import jax

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer, TransferId
from hocket.runtime.instance.account import Account
from hocket.runtime.instance.replicas import split_axis
from hocket.runtime.instance.store import Store, Values
from hocket.runtime.instance.wiring import End


class InstanceOutbox:
    """The sending ends of an instance's links."""

    def __init__(self, plan: Plan, ends: Iterable[End], store: Store, account: Account) -> None:
        self._store, self._account = store, account
        self._ends: dict[TransferId, list[End]] = {}
        for end in ends:
            self._ends.setdefault(end.link.transfer.id, []).append(end)
        # If the device itself keeps the order of programs and messages, messages are sent before
        # they are computed. With lag=free they are not, because the ledger calls a sample ready as
        # soon as it is sent.
        self._early = {
            t
            for t, to in self._ends.items()
            if plan.free is None and all(end.transport.device_ordered for end in to)
        }
        """The transfers whose messages are sent without waiting for the device to compute them."""
        self._cut = {
            t: {v: axis for v in to[0].link.transfer.values if (axis := store.axis(v)) is not None}
            for t, to in self._ends.items()
            if len(to) > 1
        }
        """For each transfer to several targets: the axis along which each value is split."""

    def send(self, transfer: Transfer, values: Values) -> None:
        """Send each target its message of a transfer, waiting while a link is full."""
        ends, cut = self._ends[transfer.id], self._cut.get(transfer.id, {})
        whole = {v: self._store.whole(v, values[v]) for v in transfer.values}
        if transfer.id not in self._early:
            jax.block_until_ready(list(whole.values()))  # no message arrives uncomputed
        parts = {v: split_axis(whole[v], axis, len(ends)) for v, axis in cut.items()}
        for k, end in enumerate(ends):
            message = [parts[v][k] if v in parts else whole[v] for v in end.link.values]
            self._account.crossing(end, partial(end.send, message))
