"""One replica's average between processes: it measures the ways it can choose from, and uses one.

Each *way* is a file of `ways/`: `shm` goes through the host's memory, `ipc` stays on one GPU,
`nccl` goes between GPUs, `hier` averages on each GPU first and then between them. All replicas
together measure before the run which one is fastest.
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
"""The seconds after which a way that is being measured counts as failed."""


class Offer(NamedTuple):
    """The answer of one replica to `listen`, for one way."""

    address: Address = None
    why_not: str = ""
    """The reason why this replica has no address and cannot average this way; or ""."""


class Reduction:
    """The `averaged` of one replica, by whichever way was chosen.

    All replicas `listen`, the run gathers their offers and hands them to everybody, and all of them
    `join`. If there are several ways to choose from, they first listen for each way and `measure`
    it (`table.agree`). `space` is the memory that the replicas need, the same one in all of them.

        with averaging(reduction):
            step(state)     # a jitted program, in which `averaged` is the mean over all processes
    """

    def __init__(self, averaging: Averaging, index: int, space: Space | None) -> None:
        self._averaging, self._members = averaging, averaging.members
        self._index, self._space = index, space
        self._listening: dict[str, Listener] = {}
        self._open: list[Joined] = []
        """The way in use, or the one that is being measured. `close` ends both."""
        self._is_closed = False

    def listen(self, way: str, is_trial: bool) -> Offer:
        """Prepare for the others to join this replica, for use or for a trial."""
        members, sites = self._averaging.given(is_trial=is_trial)
        space = self._averaging.part(way, self._space, is_trial=is_trial)
        try:
            listener = find_way(way).listen(members, self._index, sites, space)
        except Unavailable as error:
            return Offer(why_not=str(error))
        self._listening[way] = listener
        return Offer(listener.address)

    def measure(self, way: str, offers: Sequence[Offer], epoch: Epoch = 0) -> float | str:
        """Return the seconds that one call of the largest site takes, or why there are none.

        All replicas do this together. A replica that fails closes the group, so the others do not
        wait for it, and all go on to the next way.
        """
        if self._is_closed:
            return "another replica has ended"
        try:
            joined = self._join(way, offers, epoch)
        except Unavailable as error:
            return str(error)
        # Not every way has a time limit of its own, so this ends a wait for a replica that is gone.
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
        """Average by this way from now on. Call before any program is compiled."""
        try:
            self._join(way, offers, epoch)
        except Unavailable as error:
            raise PlanError(f"`averaged` cannot use `{way}` here: {error}.") from None

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self._used(*xs)

    def counts(self) -> tuple[int, int, int]:
        """Return the number of calls, this replica's bytes, and the nanoseconds of its waits."""
        return self._used.counts()

    def check(self) -> None:
        """Raise the error of an average inside a compiled program, which cannot raise it itself."""
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
            if self._is_closed:  # another thread called `close` before it could find `joined` here
                joined.close()
            return joined
        if listener:
            listener.close()
        raise Unavailable(why)


def timed(joined: Joined, site: Sequence[Any], replicas: int, index: int) -> float:
    """Return the seconds of one call inside a compiled loop. All replicas begin together."""
    xs = [jnp.full(x.shape, index, x.dtype) for x in site]

    calls = 50 if data_bytes(site) < 1 << 22 else 10

    def loop(xs: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (joined(*carry), None), xs, None, calls)[0]

    run = jax.jit(loop).lower(xs).compile()
    mean = (replicas - 1) / 2
    means = jax.block_until_ready(run(xs))
    joined.check()  # first, because this error says more than that of a wrong mean
    if not all(jnp.allclose(x, mean, rtol=1e-2) for x in means):
        raise RuntimeError(f"a trial did not give {mean}, the mean of 0 to {replicas - 1}")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run(xs))
        seconds.append((time.perf_counter() - start) / calls)
    return min(seconds)
