"""The rates between the nodes of a cluster, as last measured, in the user's cache directory."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rate:
    """The measurements of the way from one node to another."""

    source: str
    target: str
    round_trip: float
    """Seconds of the round trip of a small message."""
    rate: float
    """Bytes per second of one connection."""
    mtu: int = 0
    """The most bytes of a packet; 0 if unknown."""


def save_rates(cluster: str, rates: Iterable[Rate]) -> Path:
    """Store the rates of a cluster instead of its earlier ones. Its name is its launcher's."""
    path = _path(cluster)
    about = {"cluster": cluster, "measured": time.time(), "rates": [asdict(x) for x in rates]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about, indent=2))
    return path


def measured_rates(cluster: str) -> dict[tuple[str, str], Rate]:
    """Return the rates of a cluster as last measured; an empty dict if they never were.

        measured_rates(plan.launch.name).get(("n1", "n2"))

    `hocket devices --cluster ... --check` measures them.
    """
    try:
        about = json.loads(_path(cluster).read_text())
        rates = [Rate(**each) for each in about["rates"]]
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {(rate.source, rate.target): rate for rate in rates}


def _path(cluster: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:16]
    return Path(root) / "hocket" / "clusters" / f"{digest}.json"
