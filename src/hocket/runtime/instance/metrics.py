"""The metrics of a block: one row per iteration, kept until the end of the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import dynamic_update_index_in_dim

KEPT = 8
"""The number of rows, one per iteration, in each array of metrics on an accelerator. A large number
makes short blocks slower, because even rows that were never written are copied to the host. With 64
rows, and metrics that have an entry for each of 65,536 environments, blocks of one iteration took
7 % longer on an H200, and blocks of three took 2 % longer.
"""


def is_on_accelerator(x: Any) -> bool:
    """Return True for a JAX array on a device that is not a CPU."""
    return isinstance(x, jax.Array) and next(iter(x.devices())).platform != "cpu"


class MetricRows:
    """The metrics of some iterations, a row for each.

    Metrics on an accelerator stay there: in each iteration one small program writes them all into
    longer arrays. Copying each metric to the host by itself would take 0.3 ms, however small it is.
    """

    def __init__(self, stays: Callable[[Any], bool] = is_on_accelerator) -> None:
        self._stays = stays
        self._there: list[list[Any]] = []  # a list of arrays, one a metric, for KEPT rows together
        self._here: list[list[Any]] = []  # by row and metric; None if it is in `_there`

    def add(self, row: Sequence[Any]) -> None:
        """Add the metrics of the next iteration."""
        stay = [self._stays(x) for x in row]
        at = len(self._here) % KEPT
        if there := [x for x, stays in zip(row, stay, strict=True) if stays]:
            if at == 0:
                self._there.append(_begun(there))
            # `_begun` has written the first row already. Write it again all the same, so that this
            # program is compiled in the first block.
            self._there[-1] = _written(self._there[-1], there, at)
        self._here.append([None if stays else x for x, stays in zip(row, stay, strict=True)])

    def columns(self) -> list[np.ndarray]:
        """Return each metric as a numpy array `[iterations, ...]`."""
        kept = zip(*jax.device_get(self._there), strict=True)
        there = (np.concatenate(parts)[: len(self._here)] for parts in kept)
        return [
            next(there) if made[0] is None else np.stack([np.asarray(x) for x in made])
            for made in zip(*self._here, strict=True)
        ]


@jax.jit
def _begun(row: list[Any]) -> list[Any]:
    """Make an array of KEPT rows for each metric, on the metric's device.

    Each row is a copy of the given one, since an array of zeros would be on the default device.
    """
    return [jnp.broadcast_to(x, (KEPT, *x.shape)) for x in row]


@partial(jax.jit, donate_argnums=0)
def _written(kept: list[Any], row: list[Any], at: Any) -> list[Any]:
    pairs = zip(kept, row, strict=True)
    return [dynamic_update_index_in_dim(before, x, at, 0) for before, x in pairs]
