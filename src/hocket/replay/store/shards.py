"""One replay over several stores: rows are drawn as if they all lay in one.

A batch is shared out among the shards in proportion to the totals of their priorities, and each
draws its part by priority. So every row is drawn as often as its share of the whole says, whichever
shard it is in, and `probability` is that share. Servers tell their totals with each answer, and the
next batch is shared out by these: where priorities changed since, `probability` is still the one
that rows were drawn with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.replay.store.access import Access, Batch
from hocket.replay.store.client import Client


class Shards:
    """Several stores as one, to draw from; rows are inserted into one or the other.

    Keys have the number of the shard in their slot: shard k has the slots from k C / S on.
    """

    def __init__(self, shards: Sequence[Access], capacity: int, seed: int = 0) -> None:
        self._shards, self._each = shards, capacity // len(shards)
        self._random = np.random.default_rng(seed)
        self._told: dict[int, tuple[int, float]] = {}

    def sample(self, num: int, *, uniforms: Any = None) -> Batch:
        """Draw rows; with `uniforms`, how many of each shard is decided by these."""
        uniforms = self._random.random(num) if uniforms is None else uniforms
        sizes, totals = np.array(self._sizes_and_totals(), np.float64).T
        weights = totals if totals.any() else sizes
        shares = weights / weights.sum()
        points = (np.arange(num) + np.asarray(uniforms, np.float64)) / num
        counts = np.bincount(_at(points, shares), minlength=len(shares))
        # All are asked before one is waited for: a batch takes as long as the slowest of them.
        asked = {k: self._shards[k].ask(n) for k, n in enumerate(counts.tolist()) if n}
        parts = [self._part(k, take(), shares[k]) for k, take in asked.items()]
        found = {k: self._shards[k] for k in asked}
        self._told = {k: (x.size, x.total) for k, x in found.items() if isinstance(x, Client)}
        names = parts[0].rows
        return Batch(
            rows={name: np.concatenate([part.rows[name] for part in parts]) for name in names},
            keys=np.concatenate([part.keys for part in parts]),
            probability=np.concatenate([part.probability for part in parts]),
            evenly=all(part.evenly for part in parts),
        )

    def update(self, keys: Any, priority: Any) -> int:
        """Give rows other priorities; how many keys were of rows that are gone."""
        keys, priority, stale = np.asarray(keys), np.asarray(priority), 0
        owner = keys[:, 0] // self._each
        for k in np.unique(owner):
            mine = owner == k
            inner = keys[mine] - np.array([k * self._each, 0], np.uint32)
            stale += self._shards[k].update(inner.astype(np.uint32), priority[mine])
        return stale

    def info(self) -> dict[str, Any]:
        """How many rows there are in all, their total and the highest priority."""
        infos = [shard.info() for shard in self._shards]
        summed = {name: sum(info[name] for info in infos) for name in ("size", "inserts", "total")}
        return {**summed, "highest": max(info["highest"] for info in infos)}

    def _sizes_and_totals(self) -> list[tuple[int, float]]:
        """As a server told them with its part of the last batch; one that had none is asked."""
        asked = [k for k in range(len(self._shards)) if k not in self._told]
        infos = {k: self._shards[k].info() for k in asked}
        told = self._told | {k: (info["size"], info["total"]) for k, info in infos.items()}
        return [told[k] for k in range(len(self._shards))]

    def _part(self, k: int, batch: Batch, share: float) -> Batch:
        keys = batch.keys + np.array([k * self._each, 0], np.uint32)
        probability = (batch.probability * share).astype(np.float32)
        return Batch(batch.rows, keys, probability, batch.evenly)


def _at(points: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The shard at each point of the whole; never one without a share, however sums round."""
    shard = np.searchsorted(np.cumsum(shares), points, side="right")
    last = np.flatnonzero(shares).max()
    return np.minimum(shard, last)
