"""Networks, as flax modules: any leading axes, features last.

A network in hocket is anything with `init(key, obs) -> params` and `apply(params, obs)`; nothing
here is needed to bring your own. They compose with flax's own:

    network = linen.Sequential([nature_cnn(), Dueling(num_actions=6)])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
from flax import linen
from jax import Array

from hocket.nn.layers import CNN, MLP, Conv, Flatten


class Network(Protocol):
    """Anything with `init` and `apply`; a `flax.linen` module is one."""

    def init(self, key: Array, obs: Any, /) -> Any: ...

    def apply(self, params: Any, obs: Any, /) -> Any: ...


def network(
    obs: Any,
    size: int,
    hidden: Sequence[int],
    activation: str,
    *,
    out_scale: float = 1.0,
    after: Sequence[linen.Module] = (),
) -> Network:
    """The default network from observations like `obs` to `size` numbers.

    Images (three axes, channels last) pass through convolutions first; the rest is flattened.
    """
    return linen.Sequential([_reader(obs), MLP((*hidden, size), activation, out_scale), *after])


def encoder(obs: Any, hidden: Sequence[int], activation: str) -> linen.Sequential:
    """The default network from observations like `obs` to features, for a core that follows."""
    return linen.Sequential([_reader(obs), MLP(hidden, activation, activate_last=True)])


def nature_cnn() -> CNN:
    """For Atari frames.

    Mnih et al. 2015, "Human-level control through deep reinforcement learning":
    https://www.nature.com/articles/nature14236
    """
    return CNN((Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3)), features=512)


def grid_cnn() -> CNN:
    """For grids of about 10 x 10, such as MinAtar and Catch.

    Young and Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible
    Reinforcement Learning Experiments": https://arxiv.org/abs/1903.03176
    """
    return CNN((Conv(16, 3),), features=128)


def _reader(obs: Any) -> linen.Module:
    """What makes one axis of features of an observation."""
    if not isinstance(obs, jax.ShapeDtypeStruct):
        raise ValueError(
            f"the default network reads observations that are one array (a Box), found {obs}. "
            f"Pass a network of your own, or flatten the observation in a wrapper of the "
            f"environment."
        )
    if len(obs.shape) != 3:
        return Flatten(len(obs.shape))
    return nature_cnn() if obs.shape[0] >= 36 else grid_cnn()
