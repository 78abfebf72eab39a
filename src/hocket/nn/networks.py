"""The protocol of networks, and the default networks. They take any leading axes, features last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
from flax import linen
from jax import Array

from hocket.nn.layers import CNN, MLP, Conv, Flatten


class Network(Protocol):
    """Anything with `init` and `apply`, such as a `flax.linen` module."""

    def init(self, key: Array, obs: Any, /) -> Any: ...

    def apply(self, params: Any, obs: Any, /) -> Any: ...


class SeparateParams(NamedTuple):
    policy: Any
    value: Any


@dataclass(frozen=True)
class Separate:
    """A policy network and a value network, each of which reads the observation.

    It has the methods of `Recurrent`, so that an agent can use either. It has no recurrent state:
    the methods that return a memory in `Recurrent` return the observation here.
    """

    policy: Network
    value: Network
    initial = None

    def init(self, k_policy: Array, k_value: Array, obs: Any) -> SeparateParams:
        """Return parameters, given one observation."""
        return SeparateParams(self.policy.init(k_policy, obs), self.value.init(k_value, obs))

    def step(self, params: Any, memory: None, obs: Any) -> tuple[list[Any], None]:
        """Return the policy's output, and `memory` unchanged. `params` are the policy network's."""
        return [self.policy.apply(params, obs)], memory

    def remember(self, params: Any, memory: Any, obs: Any, first: Array | None = None) -> Any:
        """Return the observation, which is all that `read` needs."""
        return obs

    replay = remember

    def read(self, params: SeparateParams, obs: Any) -> list[Any]:
        """Return the outputs of policy and value for an observation."""
        return [self.policy.apply(params.policy, obs), self.value.apply(params.value, obs)]


def network(
    obs: Any,
    size: int,
    hidden: Sequence[int],
    activation: str,
    *,
    out_scale: float = 1.0,
    after: Sequence[linen.Module] = (),
) -> Network:
    """Return the default network, which maps observations like `obs` to `size` numbers.

    Images (three axes, channels last) first pass through convolutions; other arrays are flattened.
    """
    return linen.Sequential([_reader(obs), MLP((*hidden, size), activation, out_scale), *after])


def encoder(obs: Any, hidden: Sequence[int], activation: str) -> linen.Sequential:
    """Return the default network from observations like `obs` to features, for a GRU or heads."""
    return linen.Sequential([_reader(obs), MLP(hidden, activation, activate_last=True)])


def nature_cnn() -> CNN:
    """Return the default network for Atari frames.

    Mnih et al. 2015, "Human-level control through deep reinforcement learning":
    https://www.nature.com/articles/nature14236
    """
    return CNN((Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3)), features=512)


def grid_cnn() -> CNN:
    """Return the default network for grids of about 10 x 10, such as MinAtar and Catch.

    Young and Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible
    Reinforcement Learning Experiments": https://arxiv.org/abs/1903.03176
    """
    return CNN((Conv(16, 3),), features=128)


def _reader(obs: Any) -> linen.Module:
    """Return the first layers, which turn an observation into one axis of features."""
    if not isinstance(obs, jax.ShapeDtypeStruct):
        raise ValueError(
            f"the default network reads observations that are one array (a Box), found {obs}. "
            f"Pass a network of your own, or flatten the observation in a wrapper of the "
            f"environment."
        )
    if len(obs.shape) != 3:
        return Flatten(len(obs.shape))
    return nature_cnn() if obs.shape[0] >= 36 else grid_cnn()
