"""One replay in several tables: rows are drawn as if all of them lay in one table.

A batch is divided among the shards in proportion to their total priorities, and each shard draws
its part by priority. So the chance of a row depends on its priority alone, not on its shard, and
`probability` is that chance. A server reports its total with each answer, and the next batch is
divided by these totals. They may be slightly old, but `probability` is always the one that rows
were really drawn with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.replay.store.access import Access, Batch
from hocket.replay.store.client import Client


class Shards:
    """Several tables that are drawn from as if they were one. Insert rows into each table directly.

    The slot of a row, which is the first number of its key, says which shard the row is in. With a
    capacity of C rows in S shards, shard k has the slots from k C / S to (k + 1) C / S - 1.
    """

    def __init__(self, shards: Sequence[Access], capacity: int, seed: int = 0) -> None:
        self._shards, self._each = shards, capacity // len(shards)
        self._random = np.random.default_rng(seed)
        # The size and total that each server reported with its part of the last batch.
        self._reported: dict[int, tuple[int, float]] = {}

    def sample(self, num: int, *, uniforms: Any = None) -> Batch:
        """Draw `num` rows.

        `uniforms` only decide how many rows each shard draws. The shard itself picks them.
        """
        uniforms = self._random.random(num) if uniforms is None else uniforms
        sizes, totals = np.array(self._sizes_and_totals(), np.float64).T
        weights = totals if totals.any() else sizes
        shares = weights / weights.sum()
        points = (np.arange(num) + np.asarray(uniforms, np.float64)) / num
        counts = np.bincount(_at(points, shares), minlength=len(shares))
        # All shards are asked before the first answer is awaited, so that they work side by side.
        asked = {k: self._shards[k].ask(n) for k, n in enumerate(counts.tolist()) if n}
        parts = [self._part(k, take(), shares[k]) for k, take in asked.items()]
        drawn = ((k, self._shards[k]) for k in asked)
        self._reported = {k: (x.size, x.total) for k, x in drawn if isinstance(x, Client)}
        names = parts[0].rows
        return Batch(
            rows={name: np.concatenate([part.rows[name] for part in parts]) for name in names},
            keys=np.concatenate([part.keys for part in parts]),
            probability=np.concatenate([part.probability for part in parts]),
            evenly=all(part.evenly for part in parts),
        )

    def update(self, keys: Any, priority: Any) -> int:
        """Give rows new priorities, and return the number of keys whose rows no longer exist."""
        keys, priority, stale = np.asarray(keys), np.asarray(priority), 0
        owner = keys[:, 0] // self._each
        for k in np.unique(owner):
            mine = owner == k
            inner = keys[mine] - np.array([k * self._each, 0], np.uint32)
            stale += self._shards[k].update(inner.astype(np.uint32), priority[mine])
        return stale

    def info(self) -> dict[str, Any]:
        """Return the rows held, the rows inserted, the total priority and the highest priority.

        Each number is for all shards together.
        """
        infos = [shard.info() for shard in self._shards]
        summed = {name: sum(info[name] for info in infos) for name in ("size", "inserts", "total")}
        return {**summed, "highest": max(info["highest"] for info in infos)}

    def _sizes_and_totals(self) -> list[tuple[int, float]]:
        """Return each shard's size and total priority. Ask shards that have not reported yet."""
        current = dict(self._reported)
        for k, shard in enumerate(self._shards):
            if k not in current:
                info = shard.info()
                current[k] = info["size"], info["total"]
        return [current[k] for k in range(len(self._shards))]

    def _part(self, k: int, batch: Batch, share: float) -> Batch:
        keys = batch.keys + np.array([k * self._each, 0], np.uint32)
        probability = (batch.probability * share).astype(np.float32)
        return Batch(batch.rows, keys, probability, batch.evenly)


def _at(points: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Divide [0, 1) among the shards by their shares, and return the shard at each point.

    Never return a shard whose share is 0, even where the sum of the shares is rounded.
    """
    shard = np.searchsorted(np.cumsum(shares), points, side="right")
    last = np.flatnonzero(shares).max()
    return np.minimum(shard, last)
