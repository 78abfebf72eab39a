"""The interpreter, which carries out the program of a place, instruction by instruction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from hocket.core.graph.host_calls import HostCall, host_call
from hocket.core.plan.data import Plan
from hocket.core.program.host import calling
from hocket.core.projection.host_loops import undriven
from hocket.core.projection.instructions import (
    Compute,
    Host,
    Instruction,
    Receive,
    Repeat,
    Send,
    Transfer,
)
from hocket.runtime.host_calls.calls import HostFunctions
from hocket.runtime.instance.account import Account, Wait
from hocket.runtime.instance.inbox import InstanceInbox
from hocket.runtime.instance.outbox import InstanceOutbox
from hocket.runtime.instance.programs import Programs
from hocket.runtime.instance.replicas import cut_parts, join_parts, stack_rows
from hocket.runtime.instance.store import Store, Values


class Learning(Protocol):
    """The part of a learner that sends new parameters and takes samples, if lag=free."""

    first: Transfer
    """The first transfer that an iteration receives. Just before it, samples are chosen."""

    def send(self, transfer: Transfer, values: Values) -> None:
        """Store the values of a transfer, which are a part of the parameters to publish next."""

    def publish(self) -> Wait:
        """Publish the version stored by `send`. Return a function that waits until `take` may be
        called.
        """
        ...

    def take(self) -> None:
        """Take samples, so that the inbox receives them next."""

    def ages(self) -> np.ndarray:
        """Return the ages of the samples that were learned from since the last call of `ages`."""
        ...

    def late(self) -> dict[str, Any]:
        """Return the samples that were not learned from yet. Call this only between blocks."""
        ...

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew with the saved samples in `late`, and forget all other samples."""


class Interpreter:
    """The part of an instance that carries out the program of its place."""

    def __init__(
        self, plan: Plan, store: Store, programs: Programs, hosts: HostFunctions,
        inbox: InstanceInbox, outbox: InstanceOutbox, account: Account,
    ) -> None:  # fmt: skip
        self._plan, self._graph = plan, programs.graph
        self._store, self._programs, self._hosts = store, programs, hosts
        self._inbox, self._account = inbox, account
        self.outbox: InstanceOutbox | Learning = outbox
        self.learning: Learning | None = None
        self._calls: dict[int, HostCall | None] = {}

    def run(
        self, code: Sequence[Instruction], values: Values, parts: int = 1
    ) -> Iterator[Wait | None]:
        """Carry out a program.

        Yield before each possible wait, so that the caller can run something else meanwhile.
        """
        for step in code:
            match step:
                case Compute():
                    self._compute(step, values, parts)
                case Host():
                    yield from self._call_host(step, values)
                case Send(transfer):
                    self.outbox.send(transfer, values)
                case Receive(transfer):
                    if self.learning and transfer is self.learning.first:
                        yield self.learning.publish()
                        self.learning.take()
                    else:
                        yield self._inbox.wait_for(transfer)
                    values |= self._inbox.receive(transfer)
                case Repeat():
                    if step.node in self._plan.cut_loops and parts == 1:
                        self._repeat_in_parts(step, values)
                    elif self._hosts.inside and (whole := undriven(self._graph, step)):
                        yield None
                        self._compute_calling(whole, values, parts)
                    else:
                        yield from self._repeat(step, values, parts)

    def _compute(self, step: Compute, values: Values, parts: int) -> None:
        segment, account = self._programs.segment(step, parts), self._account
        self._store.put_host_arrays(segment.arguments, values)
        args = [values[v] for v in segment.arguments]
        start = time.perf_counter()
        with self._programs.choices():
            outs = segment(args, self._store.devices)
        if account.spans is not None:
            jax.block_until_ready(outs)  # otherwise the span would end before the segment does
            account.note("compute", segment.name, start)
            account.count_averages(start)
        _replace(step, values, outs)

    def _compute_calling(self, step: Compute, values: Values, parts: int) -> None:
        """Run a segment that calls the host. Record alternating spans of compute and host."""
        segment = self._programs.segment(step, parts, calls_host=True)
        note = self._account.note
        noted = self._account.spans is not None
        self._hosts.note(noted)
        since = time.perf_counter()

        def program() -> Sequence[Any]:
            with self._programs.choices(), calling(self._hosts):
                outs = segment([values[v] for v in segment.arguments], self._store.devices)
            return jax.block_until_ready(outs)

        outs = self._hosts.run(program)
        for name, start, end in self._hosts.noted() if noted else ():
            note("compute", segment.name, since, start)
            note("host", name, start, end)
            since = end
        note("compute", segment.name, since)
        _replace(step, values, outs)

    def _call_host(self, step: Host, values: Values) -> Iterator[Wait | None]:
        if step.node not in self._calls:
            self._calls[step.node] = host_call(self._graph.nodes[step.node])
        call = self._calls[step.node]
        assert call is not None
        ins = [self._store.batch(v, values[v]) for v in step.ins]
        args, live = call.arguments(ins), self._hosts.get(call.of)
        start = time.perf_counter()
        live.start(args)
        yield None
        outs = call.results(ins, live.finish())
        self._account.note("host", self._graph.nodes[step.node].title, start)
        pairs = zip(step.outs, outs, strict=True)
        _replace(step, values, [self._store.unbatch(v, x) for v, x in pairs])

    def _repeat_in_parts(self, loop: Repeat, values: Values) -> None:
        """Run a loop for each part of the environments. Parts take turns where one may wait."""
        parts, blocks = self._plan.parts, self._plan.blocks(loop.node) // self._store.replicas
        axes = {v: self._store.axis(v) for v in (*loop.reads, *loop.makes)}
        cut = {v: cut_parts(values[v], axes[v], parts, blocks) for v in loop.reads}
        shares = [{v: cut[v][k] for v in loop.reads} for k in range(parts)]
        turns = [self._repeat(loop, share, parts) for share in shares]
        while turns:  # `next` returns `self` if a turn is over; None is a value that a turn yields
            turns = [turn for turn in turns if next(turn, self) is not self]
        for v in loop.makes:
            values[v] = join_parts([share[v] for share in shares], axes[v], blocks)

    def _repeat(self, loop: Repeat, values: Values, parts: int) -> Iterator[Wait | None]:
        stacked, order = self._store.stacked, range(loop.length)
        fixed = {x.inside: values[x.outside] for x in loop.consts}
        carry = {c.inside: values[c.first] for c in loop.carry}
        rows: list[list[Any]] = [[] for _ in loop.ys]
        for t in reversed(order) if loop.reverse else order:
            xs = {
                x.inside: values[x.outside][(slice(None), t) if x.outside in stacked else t]
                for x in loop.xs
            }
            inner = {**self._graph.constants, **fixed, **carry, **xs}
            yield from self.run(loop.code, inner, parts)
            carry = {c.inside: inner[c.next] for c in loop.carry}
            for made, y in zip(rows, loop.ys, strict=True):
                made.append(inner[y.row])
        values |= {c.after: carry[c.inside] for c in loop.carry}
        ordered = [made[::-1] if loop.reverse else made for made in rows]
        whole = stack_rows(ordered, tuple(int(y.row in stacked) for y in loop.ys))
        values |= {y.after: x for y, x in zip(loop.ys, whole, strict=True)}
        values |= {x.after: values[x.outside] for x in loop.kept}


def _replace(step: Compute | Host, values: Values, outs: Sequence[Any]) -> None:
    """Drop the values that no later step needs, and add the values that this step has made."""
    for v in step.dead:
        del values[v]
    values |= zip(step.outs, outs, strict=True)
