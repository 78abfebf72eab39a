"""One replica's average between processes: the ways that it measures, and the one that it uses.

There are several *ways*, a file of `ways` each: `shm` through the host's memory, `ipc` on one GPU,
`nccl` between GPUs, `hier` on each GPU first and then between them. Which one is fastest is
measured by all replicas together, before the run.
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
"""After which a way that is being measured counts as failed."""


class Offer(NamedTuple):
    """How one replica answers to `listen`, for one way."""

    address: Address = None
    why_not: str = ""
    """Why this replica cannot average so, and has no address; or ""."""


class Reduction:
    """`averaged` of one replica, in the way that was chosen: one call, whichever it is.

    All replicas `listen`, the run gathers what they offer and hands it to everybody, and all of
    them `join`. Where there are several ways to choose from, they listen and `measure` each before.
    See `table.agree`. `space` has the bytes that the replicas need, in all of them the same memory.

        with averaging(reduction):
            step(state)     # a jitted program, in which `averaged` is the mean of all processes'
    """

    def __init__(self, averaging: Averaging, index: int, space: Space | None) -> None:
        self._averaging, self._members = averaging, averaging.members
        self._index, self._space = index, space
        self._listening: dict[str, Listener] = {}
        self._open: list[Joined] = []
        """The ways that end with this replica: the one in use, or the one that is measured now."""
        self._is_closed = False

    def listen(self, way: str, is_trial: bool) -> Offer:
        """Make what the others need to join this replica, for use or for a trial."""
        members, sites = self._averaging.given(is_trial=is_trial)
        space = self._averaging.part(way, self._space, is_trial=is_trial)
        try:
            listener = find_way(way).listen(members, self._index, sites, space)
        except Unavailable as error:
            return Offer(why_not=str(error))
        self._listening[way] = listener
        return Offer(listener.address)

    def measure(self, way: str, offers: Sequence[Offer], epoch: Epoch = 0) -> float | str:
        """The seconds that one call of the largest site takes, or why the way is not one.

        All replicas do it together. Whoever cannot go on tells the others, who go on to the next.
        """
        if self._is_closed:
            return "another replica has ended"
        try:
            joined = self._join(way, offers, epoch)
        except Unavailable as error:
            return str(error)
        # Whoever waits for a replica that does not come is let go, whichever way it is.
        limit = threading.Timer(TRIAL_SECONDS, joined.close)
        limit.daemon = True
        limit.start()
        try:
            with jax.default_device(self._members.device(self._index)):
                site = largest(self._averaging.sites)
                seconds = timed(joined, site, len(self._members), self._index)
            joined.check()
            joined.free()
        except Exception as error:  # noqa: BLE001 (told in the table; the others must not wait)
            joined.close()
            return f"failed: {error}".splitlines()[0][:300]
        finally:
            limit.cancel()
            self._open.remove(joined)
        return seconds

    def join(self, way: str, offers: Sequence[Offer], epoch: Epoch = 0) -> None:
        """Average in this way from now on; before any program is made."""
        try:
            self._join(way, offers, epoch)
        except Unavailable as error:
            raise PlanError(f"`averaged` cannot go by `{way}` here: {error}.") from None

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self._used(*xs)

    def counts(self) -> tuple[int, int, int]:
        """Calls so far, bytes of this replica, and nanoseconds waited for the others."""
        return self._used.counts()

    def check(self) -> None:
        """Raise what went wrong in a program, where no call could say so."""
        self._used.check()

    def close(self) -> None:
        """End every wait, now and later, in every replica, with an error there."""
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
            if self._is_closed:  # meanwhile
                joined.close()
            return joined
        if listener:
            listener.close()
        raise Unavailable(why)


def timed(joined: Joined, site: Sequence[Any], replicas: int, index: int) -> float:
    """Seconds of one call within a compiled loop, of replicas that begin together."""
    xs = [jnp.full(x.shape, index, x.dtype) for x in site]

    def loop(calls: int) -> Any:
        body = lambda carry, _: (joined(*carry), None)  # noqa: E731
        return jax.jit(lambda xs: jax.lax.scan(body, xs, None, calls)[0])

    run = loop(calls := 50 if data_bytes(site) < 1 << 22 else 10).lower(xs).compile()
    mean = (replicas - 1) / 2
    means = jax.block_until_ready(run(xs))
    joined.check()  # it knows better than the numbers what went wrong
    if not all(jnp.allclose(x, mean, rtol=1e-2) for x in means):
        raise RuntimeError(f"the mean of 0 to {replicas - 1} is not {mean}")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run(xs))
        seconds.append((time.perf_counter() - start) / calls)
    return min(seconds)
