"""The mean over replicas in several processes, from within their compiled programs.

There are several *ways*, a file each: `reduce_shm` through the host's memory, `reduce_ipc` on one
GPU, `reduce_nccl` between GPUs, `reduce_hier` on each GPU first and then between them. Which one is
fastest is measured by all replicas together, before the run.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from hocket.cluster.devices import find_devices
from hocket.cluster.slices import device_of, read_slice
from hocket.core.plan import Plan
from hocket.core.plan_checks import REDUCTIONS
from hocket.errors import PlanError
from hocket.runtime.arena import Arena
from hocket.runtime.meeting import Unavailable

AUTO = "auto"
TRIAL_SECONDS = 60.0
"""After which a way that is being measured counts as failed."""
Sites = Sequence[Sequence[Any]]
"""The arrays (or their shapes) of every call of `averaged` in a replica's programs."""


class Space(NamedTuple):
    """Memory that a group of processes shares, all zeros at first, from the start of a page."""

    arena: Arena
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.arena.address + self.offset


@dataclass(frozen=True)
class Members:
    """The replicas that average, each by the name of its device or slice; "": not named."""

    names: tuple[str, ...]

    @staticmethod
    def of(plan: Plan, place: str) -> Members:
        spot = plan.place(place)
        return Members(tuple("".join(spot.share(i)[:1]) for i in range(spot.replicas)))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def on_cpu(self) -> bool:
        return all(name.startswith("cpu:") for name in self.names)

    @property
    def backends(self) -> set[str]:
        """How the devices are cut: `mps`, `cpu`; "" where one is not."""
        parts = [read_slice(name) for name in self.names]
        return {part.backend if part else "" for part in parts}

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The replicas of each device."""
        found: dict[str, list[int]] = {}
        for index, name in enumerate(self.names):
            found.setdefault(device_of(name), []).append(index)
        return [tuple(group) for group in found.values()]

    def device(self, index: int) -> Any:
        """The device of this process, which is replica `index`."""
        return find_devices(name for name in self.names[index : index + 1] if name)[0]

    def some(self, indices: Sequence[int]) -> Members:
        return Members(tuple(self.names[i] for i in indices))


class Joined(Protocol):
    """A way at work in one replica: `joined(*arrays)` is traced, once for every call site."""

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        """The means over replicas; or the arrays of replica `root`, for all."""
        ...

    def counts(self) -> tuple[int, int, int]:
        """Calls so far, bytes of this replica, and nanoseconds waited for the others."""
        ...

    def check(self) -> None:
        """Raise what went wrong where no call could say so."""
        ...

    def close(self) -> None:
        """End every wait, now and later, in every replica, with an error there."""
        ...

    def free(self) -> None:
        """Give back what it holds, together with all others; it is not called any more."""
        ...


class Way(Protocol):
    """One way to average."""

    name: str

    def note(self, members: Members) -> str:
        """What a table of ways says about it, where all is well."""
        ...

    def why_not(self, members: Members) -> str:
        """Why these replicas cannot average so, as far as their names tell; "" if they can."""
        ...

    def is_choice(self, members: Members) -> bool:
        """Whether it is worth a measurement; otherwise it is used where asked for by name."""
        ...

    def nbytes(self, members: Members, sites: Sites) -> int:
        """The shared memory that it takes."""
        ...

    def headers(self, members: Members, sites: Sites) -> list[int]:
        """Where in that memory groups begin: `closed`, for all who wait, is their first word."""
        ...

    def join(
        self, space: Space, members: Members, index: int, sites: Sites, delay: float
    ) -> Joined:
        """Become replica `index`, together with all others. `Unavailable` where it cannot be."""
        ...


@cache
def ways() -> dict[str, Way]:
    """Every way by its name: the files `reduce_NAME.py` of this folder."""
    names = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])]
    found = [n.removeprefix("reduce_") for n in names if n.startswith("reduce_")]
    found.sort(key=REDUCTIONS.index)
    return {n: importlib.import_module(f"hocket.runtime.reduce_{n}").WAY for n in found}


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
