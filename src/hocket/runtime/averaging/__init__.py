"""The mean over replicas in several processes: what a way to average offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from hocket.cluster.devices import find_devices
from hocket.cluster.slices import device_of, read_slice
from hocket.core.plan.data import Plan
from hocket.system.shared_memory import Arena

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
