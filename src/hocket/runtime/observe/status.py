"""The status of each instance: a few numbers that it writes and that others read at any time.

Statuses lie in plain memory for threads and in shared memory for processes. So a run can be watched
without asking or stopping any instance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.report.outcome import Activity

IDLE, WORKING, RECEIVING, SENDING = range(4)


def names(plan: Plan) -> list[tuple[str, int]]:
    """Return the place and the number of every instance of a plan."""
    return [(p.name, i) for p in plan.places for i in range(plan.instances(p.name))]


def place_and_index(name: str) -> tuple[str, int]:
    """Return the place and the number of the instance `actor/0`."""
    place, _, index = name.rpartition("/")
    return place, int(index)


def counting(plan: Plan) -> set[str]:
    """Return the places whose iterations the run counts.

    In a free plan, where actors and learner do not wait for each other, this is only the learner.
    """
    return {plan.free.learner} if plan.free else {place.name for place in plan.places}


def status_dtype(plan: Plan) -> np.dtype[Any]:
    """Return the NumPy dtype of one instance's status, a record with a field for each number."""
    return np.dtype([
        ("phase", "i8"),
        ("transfer", "i8"),
        ("peer", "i8"),
        ("iteration", "i8"),
        ("moves", "i8"),  # messages sent and received: grows as the instance makes progress
        ("sent", "i8"),  # bytes sent
        ("messages", "i8"),  # messages sent
        ("working", "i8"),  # nanoseconds spent on the command `run`, waiting included
        ("waited", "i8", (len(plan.places),)),  # nanoseconds spent waiting, by the place waited for
        ("crossed", "i8", (max(1, len(plan.projection.transfers)),)),  # bytes sent, by transfer
    ])  # fmt: skip


def new_statuses(plan: Plan, buffer: Any = None) -> np.ndarray:
    """Return an array with a status for each instance of `names`, in `buffer` if one is given."""
    count, dtype = len(names(plan)), status_dtype(plan)
    return np.zeros(count, dtype) if buffer is None else np.ndarray((count,), dtype, buffer)


def deadlock(plan: Plan, before: np.ndarray, now: np.ndarray) -> str | None:
    """Return who waits for whom if the instances are stuck, else None.

    `before` and `now` are two readings of the statuses. The instances are stuck if all that are not
    idle wait, and none has made progress between the readings.
    """
    busy = now["phase"] != IDLE
    waiting = (now["phase"] == RECEIVING) | (now["phase"] == SENDING)
    if not busy.any() or (busy & ~waiting).any():
        return None
    if (before["moves"] != now["moves"]).any() or (before["phase"] != now["phase"]).any():
        return None
    lines = [
        f"  {place}/{i} waits {_for_what(plan, row)}, in iteration {row['iteration']}"
        for (place, i), row, waits in zip(names(plan), now, waiting, strict=True)
        if waits
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
    """Return how busy each place was between two readings, and which places it waited for."""
    result, order = [], names(plan)
    for place in plan.places:
        mine = [k for k, (name, _) in enumerate(order) if name == place.name]
        working, waited, sent = (
            (now[field][mine] - before[field][mine]).sum(0)
            for field in ("working", "waited", "sent")
        )
        seconds, waited = float(working) / 1e9, waited / 1e9
        shares = {
            other.name: float(waited[k] / seconds)
            for k, other in enumerate(plan.places)
            if seconds and waited[k] / seconds >= 0.005  # less would be shown as 0 %
        }
        rate = float(sent) / (seconds / len(mine)) if seconds else 0.0
        busy = max(0.0, 1.0 - sum(shares.values())) if seconds else 0.0
        result.append(Activity(place.name, place.replicas, busy, shares, rate))
    return result
