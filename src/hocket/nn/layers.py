"""Layers, as flax modules. They take any leading axes, with features last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen
from jax import Array, lax

from hocket.core.program.tuning import tuning
from hocket.errors import unknown
from hocket.ops.convolution import convolve
from hocket.ops.initializers import orthogonal

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class MLP(linen.Module):
    """Dense layers with orthogonal weights: `MLP((64, 64, num_actions), out_scale=0.01)`.

    The last layer is linear, unless `activate_last` is set. Its weights are scaled by `out_scale`.
    """

    sizes: Sequence[int]
    activation: str = "tanh"
    out_scale: float = math.sqrt(2)
    activate_last: bool = False

    @linen.compact
    def __call__(self, x: Array) -> Array:
        activate = _activation(self.activation)
        if tuning().kernels and not self.is_initializing():
            from hocket.ops import dense  # imported late: Pallas is slow

            if dense.fits((x.shape[-1], *self.sizes), self.activation, x):
                return dense.dense(
                    self._layers(), x, self.activation, activate_last=self.activate_last
                )
        for size in self.sizes[:-1]:
            x = activate(_dense(size)(x))
        x = _dense(self.sizes[-1], self.out_scale)(x)
        return activate(x) if self.activate_last else x

    def _layers(self) -> list[tuple[Array, Array]]:
        params = self.variables["params"]
        layers = (params[f"Dense_{i}"] for i in range(len(self.sizes)))
        return [(layer["kernel"], layer["bias"]) for layer in layers]


class Flatten(linen.Module):
    """Joins the last `rank` axes into one."""

    rank: int

    @linen.compact
    def __call__(self, x: Array) -> Array:
        return x.reshape(*x.shape[: x.ndim - self.rank], -1)


class LogStd(linen.Module):
    """Appends a learned log standard deviation for each feature, the same in every state."""

    @linen.compact
    def __call__(self, x: Array) -> Array:
        log_std = self.param("log_std", linen.initializers.zeros, x.shape[-1:])
        return jnp.concatenate([x, jnp.broadcast_to(log_std, x.shape)], axis=-1)


class Conv(NamedTuple):
    """The shape of a convolution: the channels, and the side and stride of the square kernel."""

    channels: int
    kernel: int
    stride: int = 1


class CNN(linen.Module):
    """Convolutions over `[..., H, W, C]` and one dense layer. Bytes are scaled to [0, 1]."""

    layers: Sequence[Conv]
    features: int
    activation: str = "relu"

    @linen.compact
    def __call__(self, x: Array) -> Array:
        activate = _activation(self.activation)
        x = x / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)
        # A convolution takes one batch axis, so T and N must become one. With N as the major part,
        # an N that is split over devices stays where it is. Tried: T as a spatial axis, and a scan
        # over T; their gradients took 4 to 12 times as long on a CPU.
        lead = x.shape[:-3]
        forward, backward = range(len(lead)), range(len(lead))[::-1]
        x = jnp.moveaxis(x, forward, backward).reshape(-1, *x.shape[-3:])
        for layer in self.layers:
            x = activate(_convolution(*layer)(x))
        x = jnp.moveaxis(x.reshape(*lead[::-1], -1), forward, backward)
        return activate(_dense(self.features)(x))


class Dueling(linen.Module):
    """Action values: a state's value, plus each action's advantage over the mean advantage.

    Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning":
    https://arxiv.org/abs/1511.06581
    """

    num_actions: int
    hidden: Sequence[int] = ()
    activation: str = "relu"

    @linen.compact
    def __call__(self, x: Array) -> Array:
        value = MLP((*self.hidden, 1), self.activation, out_scale=1.0, name="value")(x)
        advantage = MLP(
            (*self.hidden, self.num_actions), self.activation, out_scale=1.0, name="advantage"
        )(x)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)


def _convolution(channels: int, kernel: int, stride: int) -> linen.Conv:
    return linen.Conv(
        channels, (kernel, kernel), stride, padding="VALID", kernel_init=orthogonal(math.sqrt(2)),
        conv_general_dilated=convolve,
    )  # fmt: skip


def _dense(size: int, scale: float = math.sqrt(2)) -> linen.Dense:
    # `linen.Dense` always asks for the same kind of product, so the other arguments can be ignored.
    return linen.Dense(
        size, kernel_init=orthogonal(scale), dot_general=lambda x, w, *_, **__: _product(x, w)
    )


@jax.custom_vjp
def _product(x: Array, w: Array) -> Array:
    """Multiply `[..., in]` and `[in, out]`, with a gradient that is faster on a CPU."""
    return x @ w


def _product_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = saved
    batch = tuple(range(x.ndim - 1))

    def transposed_first(x: Array, g: Array) -> Array:
        rows = tuple(axis + 1 for axis in batch)
        columns = lax.optimization_barrier(jnp.moveaxis(x, -1, 0))
        return lax.dot_general(columns, g, ((rows, batch), ((), ())))

    def plain(x: Array, g: Array) -> Array:
        return lax.dot_general(x, g, ((batch, batch), ((), ())))

    # A CPU takes twice as long to sum over leading axes as over trailing ones, and even longer over
    # two of them ([T, N, F]). Transposed first, the whole gradient of a small network is twice as
    # fast. The barrier keeps XLA from folding the transpose into the product.
    return g @ w.T, lax.platform_dependent(x, g, cpu=transposed_first, default=plain)


_product.defvjp(lambda x, w: (x @ w, (x, w)), _product_backward)


def _activation(name: str) -> Callable[[Array], Array]:
    if name not in ACTIVATIONS:
        raise ValueError(unknown("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]
