"""The distribution over actions that suits an environment's action space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.spaces import Box, Discrete, MultiDiscrete, Space
from hocket.nn.layers import LogStd
from hocket.ops.distributions import Categorical, Distribution, MultiCategorical, Normal


@dataclass(frozen=True)
class Head:
    """The end of a policy.

    It turns network outputs into a distribution, and samples of this distribution into actions.
    """

    size: int
    """The number of outputs that the network must have."""
    distribution: Callable[[Array], Distribution]
    action: Callable[[Array], Array]
    """The function from samples to actions of the environment. If all bounds of a box are finite,
    samples are clipped to [-1, 1], and this range is scaled to the bounds. In any other box, the
    action is the sample itself, clipped to the bounds that are finite."""
    layers: tuple[Any, ...] = ()
    """Layers to append to the policy network."""


def head_for(space: Space, who: str) -> Head:
    """Return the usual head for an action space. Errors name the algorithm `who`."""
    if isinstance(space, Discrete):
        return Head(space.n, Categorical, lambda sample: sample)
    if isinstance(space, MultiDiscrete):
        split = partial(MultiCategorical.split, sizes=space.sizes)
        return Head(sum(space.sizes), split, lambda sample: sample)
    if isinstance(space, Box) and len(space.shape) == 1:
        dim = space.shape[0]
        return Head(dim, lambda x: Normal(x[..., :dim], x[..., dim:]), _scaled(space), (LogStd(),))
    raise ValueError(
        f"{who} cannot act in {space}. It handles Discrete, MultiDiscrete and Box with one axis: "
        f"wrap the environment, and flatten the action there."
    )


def _scaled(space: Box) -> Callable[[Array], Array]:
    """Return the function that turns samples of a distribution into actions in a box space."""
    low, high = (np.asarray(bound, space.dtype) for bound in (space.low, space.high))
    if not space.bounded:
        return lambda sample: jnp.clip(sample, low, high)
    middle, half = (high + low) / 2, (high - low) / 2
    return lambda sample: jnp.clip(sample, -1.0, 1.0) * half + middle
