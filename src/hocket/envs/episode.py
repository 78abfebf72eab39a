"""Episode statistics of one environment, carried from step to step."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from hocket.envs.env import Step


class EpisodeStats(NamedTuple):
    """The current episode, and totals of the episodes that ended since the last `clear`."""

    ret: Array
    """Undiscounted return so far of the current episode."""
    length: Array
    """Steps so far in the current episode."""
    ended_return: Array
    """Sum of the returns of ended episodes."""
    ended_length: Array
    """Sum of the lengths of ended episodes."""
    ended: Array
    """Number of ended episodes."""

    @classmethod
    def zeros(cls) -> EpisodeStats:
        """Return the statistics before the first step."""
        real, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return cls(ret=real, length=count, ended_return=real, ended_length=count, ended=count)

    def after(self, step: Step) -> EpisodeStats:
        """Return the statistics with one more step counted."""
        ret, length = self.ret + step.reward, self.length + 1
        return EpisodeStats(
            ret=jnp.where(step.done, 0, ret),
            length=jnp.where(step.done, 0, length),
            ended_return=self.ended_return + jnp.where(step.done, ret, 0),
            ended_length=self.ended_length + jnp.where(step.done, length, 0),
            ended=self.ended + step.done,
        )

    def clear(self) -> EpisodeStats:
        """Set the totals to zero for a new iteration, and keep the current episode."""
        zero = jnp.zeros_like(self.ended)
        return self._replace(
            ended_return=jnp.zeros_like(self.ended_return), ended_length=zero, ended=zero
        )
