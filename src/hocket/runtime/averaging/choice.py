"""The mean over replicas in several processes, from within their compiled programs.

There are several *ways*, a file of `ways` each: `shm` through the host's memory, `ipc` on one GPU,
`nccl` between GPUs, `hier` on each GPU first and then between them. Which one is fastest is
measured by all replicas together, before the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hocket.core.plan.checks import REDUCTIONS
from hocket.errors import PlanError
from hocket.runtime.averaging import Joined, Members, Sites, Space, Way
from hocket.system.native import Unavailable
from hocket.system.registry import Registry

AUTO = "auto"
TRIAL_SECONDS = 60.0
"""After which a way that is being measured counts as failed."""


_WAYS = Registry("reduction", "hocket.runtime.averaging.ways", "WAY")


def ways() -> dict[str, Way]:
    """Every way by its name: the files of `ways`."""
    return {name: _WAYS[name] for name in sorted(_WAYS.names, key=REDUCTIONS.index)}


def choices(members: Members, wanted: str = AUTO) -> list[str]:
    """The ways to choose from; a way that was asked for is refused where it cannot be had."""
    if wanted != AUTO:
        if why := ways()[wanted].why_not(members):
            raise PlanError(f"`averaged` cannot go by `{wanted}` here: {why} Use `reduce=auto`.")
        return [wanted]
    return [n for n, way in ways().items() if not way.why_not(members) and way.is_choice(members)]


class Reduction:
    """`averaged` of one replica, in the way that was chosen: one call, whichever it is.

    It takes `nbytes(...)` of zeros from a page on, the same in every replica. With one way to
    choose from it is ready; otherwise all replicas `measure()`, and are told which to `use`.

        with averaging(reduction):
            step(state)     # a jitted program, in which `averaged` is the mean of all processes'
    """

    def __init__(
        self, space: Space, members: Members, index: int, sites: Sites,
        wanted: str = AUTO, delay: float = 0.0,
    ) -> None:  # fmt: skip
        self._space, self._members, self._index = space, members, index
        self._sites, self._delay = sites, delay
        self._choices = choices(members, wanted)
        self.joined: Joined | None = None
        self._trial: Joined | None = None
        """The way that is being measured."""
        self._is_closed = False
        if len(self._choices) == 1:
            self.use(self._choices[0])

    @staticmethod
    def nbytes(members: Members, sites: Sites, wanted: str = AUTO) -> int:
        """Its memory: for the way that is chosen, then for a trial of each."""
        found = choices(members, wanted)
        return _real(members, sites, found) + sum(n for _, n in _trials(members, sites, found))

    @staticmethod
    def headers(
        members: Members, sites: Sites, wanted: str = AUTO, used: str | None = None
    ) -> list[int]:
        """Where groups begin in its memory: those of the way in use, or else of the trials."""
        found = choices(members, wanted)
        if used:
            return ways()[used].headers(members, roomy(sites))
        starts, end = [], _real(members, sites, found)
        for name, nbytes in _trials(members, sites, found):
            starts += [end + at for at in ways()[name].headers(members, [largest(sites)])]
            end += nbytes
        return starts

    def measure(self) -> dict[str, float | str]:
        """The seconds that one call of the largest site takes by each way, or why it is not one.

        All replicas do it together. Whoever cannot go on tells the others, who go on to the next.
        """
        found: dict[str, float | str] = {}
        offset = self._space.offset + _real(self._members, self._sites, self._choices)
        for name, nbytes in _trials(self._members, self._sites, self._choices):
            space = Space(self._space.arena, offset, nbytes)
            offset += nbytes
            found[name] = self._try(name, space)
        return found

    def use(self, name: str) -> None:
        """Average in this way from now on; before any program is made."""
        real = _real(self._members, self._sites, self._choices)
        space = self._space._replace(nbytes=real)
        try:
            self.joined = ways()[name].join(
                space, self._members, self._index, roomy(self._sites), self._delay
            )
        except Unavailable as error:
            raise PlanError(f"`averaged` cannot go by `{name}` here: {error}.") from None

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
        for joined in (self._trial, self.joined):
            if joined:
                joined.close()

    @property
    def _used(self) -> Joined:
        assert self.joined is not None, "no way to average was chosen yet"
        return self.joined

    def _try(self, name: str, space: Space) -> float | str:
        site = largest(self._sites)
        if self._is_closed:
            return "another replica has ended"
        try:
            joined = ways()[name].join(space, self._members, self._index, [site], 0.0)
        except Unavailable as error:
            return str(error)
        self._trial = joined
        if self._is_closed:  # meanwhile
            joined.close()
        # Whoever waits for a replica that does not come is let go, whichever way it is.
        limit = threading.Timer(TRIAL_SECONDS, joined.close)
        limit.daemon = True
        limit.start()
        try:
            with jax.default_device(self._members.device(self._index)):
                seconds = timed(joined, site, len(self._members), self._index)
            joined.check()
            joined.free()
        except Exception as error:  # noqa: BLE001 (told in the table; the others must not wait)
            joined.close()
            return f"failed: {error}".splitlines()[0][:300]
        finally:
            limit.cancel()
            self._trial = None
        return seconds


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


def largest(sites: Sites) -> Sequence[Any]:
    return max(sites, key=data_bytes)


def data_bytes(site: Sequence[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in site)


def roomy(sites: Sites) -> list[Sequence[Any]]:
    """The sites and as many again: XLA may copy a part of a program, and a site with it."""
    order = sorted(sites, key=data_bytes, reverse=True)
    return [*order, *order]


def pages(nbytes: int) -> int:
    return nbytes + -nbytes % 4096


def _real(members: Members, sites: Sites, found: Sequence[str]) -> int:
    return max(pages(ways()[name].nbytes(members, roomy(sites))) for name in found)


def _trials(members: Members, sites: Sites, found: Sequence[str]) -> list[tuple[str, int]]:
    if len(found) == 1:
        return []
    return [(name, pages(ways()[name].nbytes(members, [largest(sites)]))) for name in found]
