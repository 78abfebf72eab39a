"""From a space of actions to the distribution that a policy network parametrizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.spaces import Box, Discrete, MultiDiscrete, Space
from hocket.nn.layers import LogStd
from hocket.ops.distributions import Categorical, Distribution, MultiCategorical, Normal


@dataclass(frozen=True)
class Head:
    """How many numbers a policy's network gives, which distribution they make, and its actions."""

    size: int
    distribution: Callable[[Array], Distribution]
    action: Callable[[Array], Array]
    """The environment's action for a sample. Between finite bounds a sample of -1 to 1 spans a box,
    and is clipped to that; an open box takes the sample itself, clipped to the bounds it has."""
    layers: tuple[Any, ...] = ()
    """The layers that follow the network's own."""


def head_for(space: Space, who: str) -> Head:
    """The usual stochastic policy over a space of actions."""
    if isinstance(space, Discrete):
        return Head(space.n, Categorical, lambda sample: sample)
    if isinstance(space, MultiDiscrete):
        sizes = space.sizes
        return Head(sum(sizes), lambda x: MultiCategorical.split(x, sizes), lambda sample: sample)
    if isinstance(space, Box) and len(space.shape) == 1:
        dim = space.shape[0]
        return Head(dim, lambda x: Normal(x[..., :dim], x[..., dim:]), _scaled(space), (LogStd(),))
    raise ValueError(
        f"{who} cannot act in {space}. It handles Discrete, MultiDiscrete and Box with one axis: "
        f"flatten the action in a wrapper of the environment."
    )


def _scaled(space: Box) -> Callable[[Array], Array]:
    low, high = (np.asarray(bound, space.dtype) for bound in (space.low, space.high))
    if not space.bounded:
        return lambda sample: jnp.clip(sample, low, high)
    middle, half = (high + low) / 2, (high - low) / 2
    return lambda sample: jnp.clip(sample, -1.0, 1.0) * half + middle
