"""The mean over replicas in several processes, and the Protocols that a way to average implements.

known.py    lists all ways, and the ways that the replicas of a place can choose from
table.py    has all replicas agree on one way, and makes the table that gives the reasons
choice.py   runs in each replica: it measures the ways to choose from, and averages by one of them
ways/       has one file for each way
groups.py   is shared by the ways that use the native library
vectors.py  puts the arrays of a call together as vectors
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
"""The calls of `averaged` in a replica's programs. Each call is given by its arrays, or by their
shapes and dtypes."""
Address: TypeAlias = Any
"""The address of a replica: bytes, a path, or any other small value that can be pickled."""
Epoch: TypeAlias = int
"""The number of times that these replicas have joined before. Earlier messages are dropped."""


@dataclass(frozen=True)
class Members:
    """The replicas that average.

    `on` has the device or slice of each replica, or None if the plan gives it none.
    """

    on: tuple[DeviceId | None, ...]
    shares_memory: bool = True
    """True if all replicas can see the same memory."""
    delay: float = 0.0
    """Seconds added to every mean, to try out a slow network."""

    @staticmethod
    def of(plan: Plan, place: str) -> Members:
        spot, delay = plan.place(place), plan.means.get(place, Mean()).delay
        on = tuple(next(iter(spot.share(i)), None) for i in range(spot.replicas))
        nodes = {device and device.node for device in on}
        return Members(on, plan.launch.shares_memory != "none" and len(nodes) == 1, delay)

    def __len__(self) -> int:
        return len(self.on)

    @property
    def on_host(self) -> bool:
        return all(device is not None and device.is_host for device in self.on)

    @property
    def run_as_one(self) -> bool:
        """True if all replicas are on slices that run at the same time and share memory.

        Only on such slices may a kernel of one replica wait for a kernel of another.
        """
        return all(device is not None and run_as_one(device) for device in self.on)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The indices of the replicas on each device, a tuple for each device."""
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
        """Return the same replicas with a `delay` of 0."""
        return replace(self, delay=0.0)


class Joined(Protocol):
    """A replica that has joined the others, and averages with them.

    Tracing a program calls `joined(*arrays)` once for each call of `averaged` in it. The arrays may
    have any floating-point or complex type, and any size, zero included. All replicas trace the
    same calls in the same order, and their means must agree bit for bit.
    """

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        """Return the mean of each array over all replicas."""
        ...

    def counts(self) -> tuple[int, int, int]:
        """Return this replica's totals: calls, bytes it averaged, nanoseconds it waited."""
        ...

    def check(self) -> None:
        """Raise an error if a mean failed in a compiled program without making the program fail."""

    def close(self) -> None:
        """Make all present and future waits, by this replica and for it, end with an error.

        Any thread may call this. When a run ends, every replica does.
        """

    def free(self) -> None:
        """Free this replica's resources. All replicas call this together, after their last mean."""


class Listener(Protocol):
    """A replica that the others can join by its address."""

    address: Address

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> Joined:
        """Join the other replicas, which call this too.

        `addresses` has the address of every replica, in order, and includes this replica. The call
        may wait for the others, but not for ever. Raise `Unavailable` if joining fails.
        """
        ...

    def close(self) -> None:
        """Free the resources of a listener that will not join the others."""


@runtime_checkable
class Average(Protocol):
    """A way to average.

    Replicas connect in two phases. First each of them listens. Then the run hands the addresses of
    all replicas to each of them, and each joins.
    """

    name: str
    preference: int
    """The rank of this way. The table shows lower ranks first. If nothing is measured, as with
    `exact=True`, the lowest rank is chosen. `shm` has rank 0."""

    def note(self, members: Members) -> str:
        """Return the remark that the table of ways shows next to this way."""
        ...

    def why_not(self, members: Members) -> str:
        """Return "" if these replicas can average this way, or else a sentence that says why not.

        This is asked before the replicas start. `Unavailable` reports later failures.
        """
        ...

    def is_choice(self, members: Members) -> bool:
        """Return True if hocket may choose this way, False if a plan must name it to use it."""
        ...

    def room(self, members: Members, sites: Sites) -> int:
        """Return the bytes of shared memory needed to average this way, or 0 if none is needed."""
        ...

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> Listener:  # fmt: skip
        """Prepare replica `index` so that the others can join it, but do not wait for them.

        `space` is the shared memory that `room` asked for. Raise `Unavailable` if this replica
        cannot average this way.
        """
        ...
