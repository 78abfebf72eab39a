"""The mean over replicas in several processes, and the Protocols that a way to average implements.

known.py    the ways there are, and those that the replicas of a place can choose from
table.py    how all replicas agree on a way, and the table that says why
choice.py   one replica's part: it measures the ways it can choose from, and uses one
ways/       the ways, a file each
groups.py   the part that ways by the native library share
vectors.py  the arrays of a call, as vectors
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax

from hocket.cluster.devices import find_devices
from hocket.cluster.slices import run_as_one
from hocket.core.plan.data import Mean, Plan
from hocket.core.plan.device_id import DeviceId
from hocket.system.native import Unavailable
from hocket.system.shared_memory import Space

__all__ = [
    "Address", "Average", "Epoch", "Joined", "Listener", "Members", "Sites", "Space", "Unavailable",
]  # fmt: skip

Sites = Sequence[Sequence[Any]]
"""The arrays (or their shapes) of every call of `averaged` in a replica's programs."""
Address: TypeAlias = Any
"""The address of a replica: bytes, a path, or any other small value that can be pickled."""
Epoch: TypeAlias = int
"""How often the instances of a run were started before. Messages of earlier epochs are dropped."""


@dataclass(frozen=True)
class Members:
    """The replicas that average: the device or slice of each, None where the plan names none."""

    on: tuple[DeviceId | None, ...]
    shares_memory: bool = True
    """True if all replicas can see the same memory."""
    delay: float = 0.0
    """The seconds by which every mean is made to take longer, for experiments."""

    @staticmethod
    def of(plan: Plan, place: str) -> Members:
        spot, delay = plan.place(place), plan.means.get(place, Mean()).delay
        on = tuple(next(iter(spot.share(i)), None) for i in range(spot.replicas))
        return Members(on, plan.launch.shares_memory != "none", delay)

    def __len__(self) -> int:
        return len(self.on)

    @property
    def on_host(self) -> bool:
        return all(device is not None and device.is_host for device in self.on)

    @property
    def run_as_one(self) -> bool:
        """True if all are on slices where processes may wait for each other on the device."""
        return all(device is not None and run_as_one(device) for device in self.on)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The numbers of the replicas on each device."""
        by_device: dict[DeviceId | None, list[int]] = {}
        for index, device in enumerate(self.on):
            by_device.setdefault(device and device.whole, []).append(index)
        return [tuple(group) for group in by_device.values()]

    def device(self, index: int) -> Any:
        """Return the device of this process, which is replica `index`."""
        return find_devices(device for device in self.on[index : index + 1] if device)[0]

    def some(self, indices: Sequence[int]) -> Members:
        return replace(self, on=tuple(self.on[i] for i in indices))

    def at_once(self) -> Members:
        """Return the same replicas without a delay."""
        return replace(self, delay=0.0)


class Joined(Protocol):
    """A replica that has joined the others, and averages with them.

    `joined(*arrays)` is called while a program is traced, once for every call of `averaged`. The
    arrays have any floating-point or complex type and any size, zero included. All replicas trace
    the same calls in the same order, and must get the same bits.
    """

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        """Return the means over replicas."""
        ...

    def counts(self) -> tuple[int, int, int]:
        """Return the number of calls, this replica's bytes, and the nanoseconds of its waits."""
        ...

    def check(self) -> None:
        """Raise the error of an average inside a compiled program, which cannot raise it itself."""

    def close(self) -> None:
        """End every wait of this replica, and every wait for it, now and later, with an error.

        Called from any thread, and by every replica when a run ends.
        """

    def free(self) -> None:
        """Free this replica's resources. All replicas do so together, and average no more."""


class Listener(Protocol):
    """A replica that the others can join by its address."""

    address: Address

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> Joined:
        """Join the others, who do the same. `addresses` has all replicas in order, this one too.

        It may wait for the others, though not for ever. Raise `Unavailable` if joining fails.
        """
        ...

    def close(self) -> None:
        """Free what it holds. Called if `join` never is."""


@runtime_checkable
class Average(Protocol):
    """A way to average.

    Replicas come together in two phases: each of them listens, and when the run has handed the
    addresses of all replicas to everybody, each of them joins.
    """

    name: str
    preference: int
    """The rank of this way, lowest first, in tables and in a choice without measurements, as with
    `exact=True`. `shm` has 0."""

    def note(self, members: Members) -> str:
        """Return a remark about this way for the table of ways."""
        ...

    def why_not(self, members: Members) -> str:
        """Say why these replicas cannot average this way, as far as is known before they start.

        Return "" if nothing is against it.
        """
        ...

    def is_choice(self, members: Members) -> bool:
        """Return True if this way should be measured; otherwise it is used only if named."""
        ...

    def room(self, members: Members, sites: Sites) -> int:
        """Return how many bytes of memory the replicas have to share; 0 for none."""
        ...

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> Listener:  # fmt: skip
        """Prepare replica `index` for the others to join, without waiting for any of them.

        `space` has the bytes that `room` asked for. Raise `Unavailable` if this way fails here.
        """
        ...
