"""The mean over replicas in several processes: what a way to average offers.

known.py    which ways there are, and which of them some replicas can choose from
choice.py   one replica's average: it measures the ways it can choose from, and uses one
table.py    all replicas agree on a way, and the table that says why
ways/       the ways, a file each
vectors.py  ffi.py  in_memory.py   what several ways need
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax

from hocket.cluster.devices import find_devices
from hocket.cluster.slices import device_of, read_slice
from hocket.core.plan.data import Mean, Plan
from hocket.system.native import Unavailable
from hocket.system.shared_memory import Space

__all__ = ["Address", "Average", "Epoch", "Joined", "Listener", "Members", "Sites", "Space"]
__all__ += ["Unavailable"]

Sites = Sequence[Sequence[Any]]
"""The arrays (or their shapes) of every call of `averaged` in a replica's programs."""
Address: TypeAlias = Any
"""What the others need to reach a replica: bytes, a path, any small value that can be pickled."""
Epoch: TypeAlias = int
"""How often the instances of a run were started before: what an older start sent is dropped."""


@dataclass(frozen=True)
class Members:
    """The replicas that average, each by the name of its device or slice; "": not named."""

    names: tuple[str, ...]
    shares_memory: bool = True
    """Whether there is memory that all of them see."""
    delay: float = 0.0
    """Seconds by which every mean is made to take longer, for experiments."""

    @staticmethod
    def of(plan: Plan, place: str) -> Members:
        spot, delay = plan.place(place), plan.means.get(place, Mean()).delay
        names = tuple("".join(spot.share(i)[:1]) for i in range(spot.replicas))
        return Members(names, plan.launch.shares_memory != "none", delay)

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
        return replace(self, names=tuple(self.names[i] for i in indices))

    def at_once(self) -> Members:
        """The same without a delay."""
        return replace(self, delay=0.0)


class Joined(Protocol):
    """A way at work in one replica: `joined(*arrays)` is traced, once for every call site.

    The arrays are of any floating-point or complex type and of any size, also of none. All replicas
    trace the same calls in the same order, and must get the same bits.
    """

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        """The means over replicas."""
        ...

    def counts(self) -> tuple[int, int, int]:
        """Calls so far, bytes of this replica, and nanoseconds waited for the others."""
        ...

    def check(self) -> None:
        """Raise what went wrong where no call could say so."""
        ...

    def close(self) -> None:
        """End every wait for this replica and of it, now and later, with an error there.

        Called from any thread, and by every replica when a run ends.
        """
        ...

    def free(self) -> None:
        """Give back what it holds, together with all others; it is not called any more."""
        ...


class Listener(Protocol):
    """A replica that the others can join by its address."""

    address: Address

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> Joined:
        """Average with all others, who do the same; in their order, its own among them.

        It may wait for the others, though not for ever. `Unavailable` where it cannot be.
        """
        ...

    def close(self) -> None:
        """Give back what it holds, in place of `join`."""
        ...


@runtime_checkable
class Average(Protocol):
    """One way to average.

    Replicas come together in two phases: each of them listens, and when the run has handed the
    addresses of all of them to everybody, each of them joins.
    """

    name: str
    preference: int
    """Ways with a lower one come first: with `exact=True`, where no clock chooses, and in tables.
    The host's memory has 0."""

    def note(self, members: Members) -> str:
        """What a table of ways says about it, where all is well."""
        ...

    def why_not(self, members: Members) -> str:
        """Why these replicas cannot average so, as far as is known before they start; or ""."""
        ...

    def is_choice(self, members: Members) -> bool:
        """Whether it is worth a measurement; otherwise it is used where asked for by name."""
        ...

    def room(self, members: Members, sites: Sites) -> int:
        """The bytes of memory that all replicas must share for it; 0 if it needs none."""
        ...

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> Listener:  # fmt: skip
        """Make what the others need to join replica `index`, without waiting for any of them.

        `space` has the bytes that `room` asked for. `Unavailable` where it cannot be.
        """
        ...
