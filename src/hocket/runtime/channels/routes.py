"""Which instance of a place sends to which of another."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer


@dataclass(frozen=True)
class Route:
    """How the instances of a source and of a target pair up."""

    sources: int
    targets: int
    any: bool = False
    """Whether what one source sends is whole without that of the others."""

    @staticmethod
    def of(plan: Plan, transfer: Transfer) -> Route:
        sources, targets = plan.instances(transfer.source), plan.instances(transfer.target)
        some = plan.free is not None and plan.free.is_any(transfer)
        return Route(sources, targets, any=some)

    def pairs(self) -> list[tuple[int, int]]:
        """Each source with each of its targets."""
        most = max(self.sources, self.targets)
        return [(k * self.sources // most, k * self.targets // most) for k in range(most)]

    def leads(self, source: int, target: int) -> bool:
        """Whether this source is the one that sends the target what is uniform."""
        return self.any or source == next(s for s, t in self.pairs() if t == target)


def is_version(plan: Plan, transfer: Transfer) -> bool:
    """Whether this crosses through a free channel: the newest for all who read it."""
    return plan.free is not None and plan.free.is_version(transfer)
