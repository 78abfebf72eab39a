"""The part of averaging that each replica runs: it measures the possible ways, and uses one.

Each *way* is a file of `ways/`: `shm` goes through the host's memory, `tcp` goes between
machines, `ipc` stays on one GPU, `nccl` goes between GPUs, `hier` averages on each GPU first and
then between them. Before the run, all replicas together measure which way is fastest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hocket.errors import PlanError
from hocket.runtime.averaging import Address, Epoch, Joined, Listener, Space, Unavailable
from hocket.runtime.averaging.known import Averaging, data_bytes, find_way, largest

TRIAL_SECONDS = 60.0
"""The time limit in seconds for measuring one way, which counts as failed if it takes longer."""


class Offer(NamedTuple):
    """One replica's answer to `listen`, for one way: its address, or why it cannot average."""

    address: Address = None
    why_not: str = ""
    """The reason why this replica cannot average this way; "" if it can. A replica
    that cannot has no address."""


class Reduction:
    """The implementation of `averaged` in one replica. All replicas agree on one way to average.

    `table.agree` calls `listen` in all replicas, collects the offers that it returns, and passes
    all of them to `join` in every replica. If there are several ways to choose from, it first calls
    `listen` and `measure` for each way. `space` is memory that all replicas share.

        with averaging(reduction):
            step(state)     # a jitted program, in which `averaged` is the mean over all processes
    """

    def __init__(self, averaging: Averaging, index: int, space: Space | None) -> None:
        self._averaging, self._members = averaging, averaging.members
        self._index, self._space = index, space
        self._listening: dict[str, Listener] = {}
        self._open: list[Joined] = []
        """The groups that `close` has to end: the one in use, or the one that is being measured."""
        self._is_closed = False

    def listen(self, way: str, is_trial: bool) -> Offer:
        """Prepare this replica so that the others can join it, to average by `way`.

        With `is_trial`, the replicas will only measure this way. Otherwise the run will use it.
        """
        members, sites = self._averaging.given(is_trial=is_trial)
        space = self._averaging.part(way, self._space, is_trial=is_trial)
        try:
            listener = find_way(way).listen(members, self._index, sites, space)
        except Unavailable as error:
            return Offer(why_not=str(error))
        self._listening[way] = listener
        return Offer(listener.address)

    def measure(self, way: str, offers: Sequence[Offer], epoch: Epoch = 0) -> float | str:
        """Return the seconds that the largest call of `averaged` takes, or the reason it failed.

        All replicas call this together. A replica that fails closes the group, so that the others
        do not wait for it, and all replicas go on to the next way.
        """
        if self._is_closed:
            return "another replica has ended"
        try:
            joined = self._join(way, offers, epoch)
        except Unavailable as error:
            return str(error)
        # Some ways have no time limit of their own. This timer ends a wait for a dead replica.
        limit = threading.Timer(TRIAL_SECONDS, joined.close)
        limit.daemon = True
        limit.start()
        try:
            with jax.default_device(self._members.device(self._index)):
                site = largest(self._averaging.sites)
                seconds = timed(joined, site, len(self._members), self._index)
            joined.check()
            joined.free()
        except Exception as error:  # noqa: BLE001 (the table tells it; the others must not wait)
            joined.close()
            return f"failed: {error}".splitlines()[0][:300]
        finally:
            limit.cancel()
            self._open.remove(joined)
        return seconds

    def join(self, way: str, offers: Sequence[Offer], epoch: Epoch = 0) -> None:
        """Join the replicas that made these offers, and from now on average with them by `way`.

        Call this before any program is compiled.
        """
        try:
            self._join(way, offers, epoch)
        except Unavailable as error:
            raise PlanError(f"`averaged` cannot use `{way}` here: {error}.") from None

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self._used(*xs)

    def counts(self) -> tuple[int, int, int]:
        """Return this replica's totals: calls, bytes it averaged, nanoseconds it waited."""
        return self._used.counts()

    def check(self) -> None:
        """Raise an error if a mean failed in a compiled program without making the program fail."""
        self._used.check()

    def close(self) -> None:
        """Make all present and future waits, in every replica, end with an error."""
        self._is_closed = True
        for joined in list(self._open):
            joined.close()

    @property
    def _used(self) -> Joined:
        assert self._open, "no way to average was chosen yet"
        return self._open[0]

    def _join(self, way: str, offers: Sequence[Offer], epoch: Epoch) -> Joined:
        listener = self._listening.pop(way, None)
        why = offers[self._index].why_not or next(
            (f"{x.why_not} (in replica {i})" for i, x in enumerate(offers) if x.why_not), ""
        )
        if listener and not why:
            joined = listener.join([offer.address for offer in offers], epoch)
            self._open.append(joined)
            if self._is_closed:  # another thread called `close` before `joined` was in `_open`
                joined.close()
            return joined
        if listener:
            listener.close()
        raise Unavailable(why)


def timed(joined: Joined, site: Sequence[Any], replicas: int, index: int) -> float:
    """Return the seconds that one mean takes in a compiled loop. All replicas must call this."""
    xs = [jnp.full(x.shape, index, x.dtype) for x in site]

    calls = 50 if data_bytes(site) < 1 << 22 else 10

    def loop(xs: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (joined(*carry), None), xs, None, calls)[0]

    run = jax.jit(loop).lower(xs).compile()
    mean = (replicas - 1) / 2
    means = jax.block_until_ready(run(xs))
    joined.check()  # first, because its error says more than that a mean is wrong
    if not all(jnp.allclose(x, mean, rtol=1e-2) for x in means):
        raise RuntimeError(
            f"a trial gave a wrong mean of the numbers 0 to {replicas - 1}: it must be {mean}"
        )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run(xs))
        seconds.append((time.perf_counter() - start) / calls)
    return min(seconds)
