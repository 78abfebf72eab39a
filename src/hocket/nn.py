"""Networks, as flax modules: any leading axes, features last.

A network in hocket is anything with `init(key, obs) -> params` and `apply(params, obs)`; nothing
here is needed to bring your own. They compose with flax's own:

    network = linen.Sequential([nature_cnn(), Dueling(num_actions=6)])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import linen
from jax import Array, lax

from hocket.core.tuning import tuning
from hocket.errors import unknown
from hocket.ops.convolution import convolve
from hocket.ops.initializers import orthogonal

Memory = TypeVar("Memory")
Output = TypeVar("Output")

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


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


class MLP(linen.Module):
    """Dense layers with orthogonal weights: `MLP((64, 64, num_actions), out_scale=0.01)`.

    The last layer is linear unless `activate_last`, and `out_scale` is the scale of its weights.
    """

    sizes: Sequence[int]
    activation: str = "tanh"
    out_scale: float = math.sqrt(2)
    activate_last: bool = False

    @linen.compact
    def __call__(self, x: Array) -> Array:
        activate = _activation(self.activation)
        if tuning().kernels and not self.is_initializing():
            from hocket.ops import dense  # here: importing Pallas takes a while

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
    """The last `rank` axes as one."""

    rank: int

    @linen.compact
    def __call__(self, x: Array) -> Array:
        return x.reshape(*x.shape[: x.ndim - self.rank], -1)


class LogStd(linen.Module):
    """Appends a log standard deviation for each feature: learned, and the same in every state."""

    @linen.compact
    def __call__(self, x: Array) -> Array:
        log_std = self.param("log_std", linen.initializers.zeros, x.shape[-1:])
        return jnp.concatenate([x, jnp.broadcast_to(log_std, x.shape)], axis=-1)


class Conv(NamedTuple):
    """One convolution: its channels, and the side and the stride of its square kernel."""

    channels: int
    kernel: int
    stride: int = 1


class CNN(linen.Module):
    """Convolutions over `[..., H, W, C]`, then one dense layer. Bytes are scaled to [0, 1]."""

    layers: Sequence[Conv]
    features: int
    activation: str = "relu"

    @linen.compact
    def __call__(self, x: Array) -> Array:
        activate = _activation(self.activation)
        x = x / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)
        # A convolution takes one batch axis, so T and N must become one. With N the major part, an
        # N split over devices stays where it is. Tried: T as a spatial axis, and a scan over T,
        # whose gradients took 4 to 12 times as long on CPU.
        lead = x.shape[:-3]
        forward, backward = range(len(lead)), range(len(lead))[::-1]
        x = jnp.moveaxis(x, forward, backward).reshape(-1, *x.shape[-3:])
        for layer in self.layers:
            x = activate(_convolution(*layer)(x))
        x = jnp.moveaxis(x.reshape(*lead[::-1], -1), forward, backward)
        return activate(_dense(self.features)(x))


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


class Dueling(linen.Module):
    """Action values as a state's value plus each action's advantage over the mean action.

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


class GRU(linen.Module):
    """A recurrent core: `apply(params, memory, x) -> (memory, y)` is one step, of `[N, ...]`.

        memory, y = scan_memory(partial(gru.apply, params), memory, x, first)

    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder":
    https://arxiv.org/abs/1406.1078
    """

    features: int

    @linen.compact
    def __call__(self, memory: Array, x: Array) -> tuple[Array, Array]:
        return linen.GRUCell(self.features, recurrent_kernel_init=orthogonal())(memory, x)

    @linen.nowrap
    def initial(self, num: int) -> Array:
        """The memory with which an episode begins: zeros."""
        return jnp.zeros((num, self.features))


@dataclass(frozen=True)
class Recurrent:
    """An encoder, a GRU, and heads that read its memory: what policy and value may share.

    The encoder and the heads see any leading axes at once; only the GRU goes step by step. Without
    a core nothing is remembered: the heads read the encoder's features.
    """

    encoder: Network
    core: GRU | None
    heads: tuple[Network, ...]

    def init(self, key: Array, obs: Any) -> Any:
        """Parameters, from one observation."""
        k_encoder, k_core, *k_heads = jax.random.split(key, 2 + len(self.heads))
        encoder = self.encoder.init(k_encoder, obs)
        features = self.encoder.apply(encoder, obs)
        core = self.core and self.core.init(k_core, self.initial, features)
        seen = features if self.core is None else self.initial
        heads = [h.init(k, seen) for h, k in zip(self.heads, k_heads, strict=True)]
        return {"encoder": encoder, "core": core, "heads": heads}

    @property
    def initial(self) -> Any:
        """The memory of one environment at an episode's beginning: zeros; None without a core."""
        return None if self.core is None else self.core.initial(1)[0]

    def remember(self, params: Any, memory: Any, obs: Any) -> Array:
        """The memory after one more observation, for the heads to read."""
        features = self.encoder.apply(params["encoder"], obs)
        if self.core is None:
            return features
        step: Any = self.core.apply(params["core"], memory, features)
        return step[0]

    def replay(self, params: Any, memory: Any, obs: Any, first: Array) -> Array:
        """The memory after each step `[T, N, ...]`, from that before them; zero before `first`."""
        features = self.encoder.apply(params["encoder"], obs)
        if self.core is None:
            return features
        step: Any = partial(self.core.apply, params["core"])
        return scan_memory(step, memory, features, first)[1]

    def read(self, params: Any, memory: Array) -> list[Any]:
        """What each head gives for a memory."""
        return [h.apply(p, memory) for h, p in zip(self.heads, params["heads"], strict=True)]


def reset_memory(memory: Memory, first: Array) -> Memory:
    """`memory`, and zero in each environment where an episode begins (`first`)."""

    def reset(m: Array) -> Array:
        begins = first.reshape(first.shape + (1,) * (m.ndim - first.ndim))
        return jnp.where(begins, jnp.zeros_like(m), m)

    return jax.tree.map(reset, memory)


def scan_memory(
    step: Callable[[Memory, Array], tuple[Memory, Output]], memory: Memory, x: Array, first: Array
) -> tuple[Memory, Output]:
    """Run a recurrent step over `[T, N, ...]`, memory zero where an episode begins (`first`)."""

    def body(memory: Memory, at: tuple[Array, Array]) -> tuple[Memory, Output]:
        x_t, first_t = at
        return step(reset_memory(memory, first_t), x_t)

    return lax.scan(body, memory, (x, first))


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


def _convolution(channels: int, kernel: int, stride: int) -> linen.Conv:
    return linen.Conv(
        channels, (kernel, kernel), stride, padding="VALID", kernel_init=orthogonal(math.sqrt(2)),
        conv_general_dilated=convolve,
    )  # fmt: skip


def _dense(size: int, scale: float = math.sqrt(2)) -> linen.Dense:
    return linen.Dense(size, kernel_init=orthogonal(scale), dot_general=_dot)


def _dot(x: Array, w: Array, *_: Any, **__: Any) -> Array:
    """What `linen.Dense` computes: of any leading axes, with a gradient of our own."""
    return _product(x, w)


@jax.custom_vjp
def _product(x: Array, w: Array) -> Array:
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

    # A CPU takes twice as long to sum over leading axes as over trailing ones, and longer still
    # over two of them ([T, N, F]): the whole gradient of a small network is twice as fast this way.
    return g @ w.T, lax.platform_dependent(x, g, cpu=transposed_first, default=plain)


_product.defvjp(lambda x, w: (x @ w, (x, w)), _product_backward)


def _activation(name: str) -> Callable[[Array], Array]:
    if name not in ACTIVATIONS:
        raise ValueError(unknown("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]
