"""What each instance is doing: a few numbers that it writes and that others may read any time.

They lie in plain memory for threads and in shared memory for processes, so that whoever watches a
run asks nobody and stops nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.report.outcome import Activity

IDLE, WORKING, RECEIVING, SENDING = range(4)


def names(plan: Plan) -> list[tuple[str, int]]:
    """Every instance of a plan, by its place and number."""
    return [(p.name, i) for p in plan.places for i in range(plan.instances(p.name))]


def counting(plan: Plan) -> set[str]:
    """The places whose iterations are a run's: with a free channel, the one that learns."""
    return {plan.free.learner} if plan.free else {place.name for place in plan.places}


def status_dtype(plan: Plan) -> np.dtype[Any]:
    """The numbers of one instance."""
    return np.dtype([
        ("phase", "i8"),
        ("transfer", "i8"),
        ("peer", "i8"),
        ("iteration", "i8"),
        ("moves", "i8"),  # messages sent and received: it goes on as long as this grows
        ("sent", "i8"),  # bytes
        ("messages", "i8"),  # sent
        ("working", "i8"),  # nanoseconds since it was told to run, waiting included
        ("waited", "i8", (len(plan.places),)),  # nanoseconds, by the place waited for
        ("crossed", "i8", (max(1, len(plan.projection.transfers)),)),  # bytes sent, by transfer
    ])  # fmt: skip


def new_statuses(plan: Plan, buffer: Any = None, offset: int = 0) -> np.ndarray:
    """The statuses of all instances, in the order of `names`."""
    count = len(names(plan))
    if buffer is None:
        return np.zeros(count, status_dtype(plan))
    return np.ndarray((count,), status_dtype(plan), buffer=buffer, offset=offset)


def deadlock(plan: Plan, before: np.ndarray, now: np.ndarray) -> str | None:
    """Who waits for whom, if everybody who still works waits, and nobody has moved since."""
    busy = now["phase"] != IDLE
    waiting = (now["phase"] == RECEIVING) | (now["phase"] == SENDING)
    if not busy.any() or (busy & ~waiting).any():
        return None
    if (before["moves"] != now["moves"]).any() or (before["phase"] != now["phase"]).any():
        return None
    lines = [
        f"  {place}/{i} waits {_for_what(plan, row)}, in iteration {row['iteration']}"
        for (place, i), row in zip(names(plan), now, strict=True)
        if row["phase"] in (RECEIVING, SENDING)
    ]
    return "\n".join(["the instances wait for each other, and none can go on:", *lines])


def _for_what(plan: Plan, row: Any) -> str:
    t = plan.projection.transfers[row["transfer"]]
    what = plan.graph.values[t.values[0]].name
    more = f" and {len(t.values) - 1} more" if len(t.values) > 1 else ""
    if row["phase"] == RECEIVING:
        return f"for {what}{more} from {t.source}/{row['peer']}"
    return f"for room to send {what}{more} to {t.target}/{row['peer']}"


def activities(plan: Plan, before: np.ndarray, now: np.ndarray) -> list[Activity]:
    """How busy each place was between two readings, and for whom it waited."""
    found, order = [], names(plan)
    for place in plan.places:
        mine = [k for k, (name, _) in enumerate(order) if name == place.name]
        since = now[mine], before[mine]
        seconds = _grown(since, "working") / 1e9
        waited = (since[0]["waited"] - since[1]["waited"]).sum(0) / 1e9
        shares = {
            other.name: float(waited[k] / seconds)
            for k, other in enumerate(plan.places)
            if seconds and waited[k] / seconds >= 0.005
        }
        rate = _grown(since, "sent") / (seconds / len(mine)) if seconds else 0.0
        busy = max(0.0, 1.0 - sum(shares.values())) if seconds else 0.0
        found.append(Activity(place.name, place.replicas, busy, shares, rate))
    return found


def _grown(since: Sequence[np.ndarray], field: str) -> float:
    return float((since[0][field] - since[1][field]).sum())
