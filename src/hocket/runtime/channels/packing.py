"""Packing: the small arrays of a message become one block, which needs only one copy to the host.

Without packing, each array is copied and waited for by itself. So the end of a channel that is on
an accelerator packs: one compiled program puts the arrays next to each other, as words of 32 bits,
and one copy brings the block to the host. At the receiving end, one program takes the block apart,
and joins the samples of several senders. In a block the arrays lie exactly as they do in a slot
without packing, so each end may pack or not, whatever the other end does. Only bits are moved, so
nothing is rounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hocket.runtime.channels.host_arrays import from_host, host_spec, is_key, to_host
from hocket.runtime.channels.joins import Assembly
from hocket.system.ring import Spec, slot_layout

LARGE = 1 << 20
"""The size in bytes from which an array is not packed, because packing copies it once more. This is
an estimate: at 50 GB/s the copy takes 20 us, about as long as the transfer that packing saves."""

_LINE = 16  # the alignment of arrays in a slot: 64 bytes, in words of 32 bits


def packs(asked: bool | None, devices: Sequence[Any], *, sends: bool, loops: bool = False) -> bool:
    """Return True if the end of a channel on these devices packs small arrays into one block.

    An end on several devices never packs, because each device has its own part of an array. For an
    end on one device, `asked` decides unless it is None. By default, an accelerator packs. A CPU
    does not pack to send, since it needs no transfer, nor to receive in a loop, where its program
    reads the arrays in the host's memory as they are. To receive outside of loops it packs, because
    one program takes in 12 arrays two to three times faster than JAX does one by one (see
    `benchmarks/packing.py`).
    """
    usual = devices[0].platform != "cpu" or not (sends or loops)
    return len(devices) == 1 and (usual if asked is None else asked)


@functools.cache
def packing(like: tuple[jax.ShapeDtypeStruct, ...]) -> Packing:
    """Return the packing of messages with these shapes and dtypes.

    All such messages share one packing, and so its compiled programs.
    """
    return Packing(like)


@dataclass(frozen=True, eq=False)
class Packing:
    """The layout of a message in a slot: small arrays come first, so that they are one block."""

    like: tuple[jax.ShapeDtypeStruct, ...]

    @functools.cached_property
    def small(self) -> tuple[int, ...]:
        return tuple(k for k, (shape, dtype) in enumerate(self._host) if _is_small(shape, dtype))

    @functools.cached_property
    def large(self) -> tuple[int, ...]:
        return tuple(k for k in range(len(self.like)) if k not in self.small)

    @functools.cached_property
    def _host(self) -> list[Spec]:
        return [host_spec(x) for x in self.like]

    @functools.cached_property
    def _words(self) -> tuple[dict[int, slice], int]:
        """Each small array's slice of the block, and the block's size, both in 32-bit words."""
        specs = [self._host[k] for k in self.small]
        starts = [start // 4 for start in slot_layout(specs)[0]]
        counts = [math.ceil(math.prod(shape) * dtype.itemsize / 4) for shape, dtype in specs]
        words = {k: slice(a, a + n) for k, a, n in zip(self.small, starts, counts, strict=True)}
        return words, sum(n + -n % _LINE for n in counts)

    def pays(self) -> bool:
        """Return True if packing saves a transfer, as for two or more non-empty small arrays."""
        return sum(math.prod(self.like[k].shape) > 0 for k in self.small) > 1

    def specs(self, *, packed: bool) -> list[Spec]:
        """Return the shapes and dtypes of a slot's arrays.

        If `packed` is True, all small arrays count as one array, the block.
        """
        if packed:
            return [((self._words[1],), np.dtype(np.uint32)), *(self._host[k] for k in self.large)]
        return [self._host[k] for k in (*self.small, *self.large)]

    def to_slot(self, message: Sequence[Any], *, packed: bool) -> list[np.ndarray]:
        """Return a message as numpy arrays with the shapes and dtypes of `specs`."""
        small, large = ([message[k] for k in chosen] for chosen in (self.small, self.large))
        if packed:
            # Results of host functions are numpy arrays already, so they are packed on the host.
            on_device = all(isinstance(x, jax.Array) for x in small)
            small = [_packed(small) if on_device else self._packed_on_host(small)]
        arrays = [jax.random.key_data(x) if is_key(x) else x for x in (*small, *large)]
        for x in arrays if packed else ():  # begin all copies before waiting for any
            if isinstance(x, jax.Array):
                x.copy_to_host_async()
        return [np.asarray(x) for x in arrays]

    def from_slot(self, arrays: Sequence[np.ndarray], *, packed: bool) -> Any:
        """Undo `to_slot`: return the message in these arrays, as a `Packed` if `packed` is True.

        The arrays must not be views of a slot. JAX on a CPU uses aligned memory without a copy, so
        the message would change when the sender fills the slot again.
        """
        if packed:
            return Packed(self, arrays[0], tuple(arrays[1:]))
        by_number = dict(zip((*self.small, *self.large), arrays, strict=True))
        return [from_host(by_number[k], like) for k, like in enumerate(self.like)]

    def _packed_on_host(self, small: Sequence[Any]) -> np.ndarray:
        block = np.zeros(self._words[1], np.uint32)
        for k, x in zip(self.small, small, strict=True):
            self.on_host(block, k)[...] = to_host(x)
        return block

    def on_host(self, block: np.ndarray, k: int) -> np.ndarray:
        """Return small array `k` as a view of the block."""
        shape, dtype = self._host[k]
        nbytes = math.prod(shape) * dtype.itemsize
        return block[self._words[0][k]].view(np.uint8)[:nbytes].view(dtype).reshape(shape)

    def array(self, k: int, block: Any, large: Sequence[Any]) -> Any:
        """Return array `k` of a packed message. This works under `jit`."""
        like, (shape, dtype) = self.like[k], self._host[k]
        if k in self.large:
            x = large[self.large.index(k)]
        else:
            words = block[self._words[0][k]]
            words = words.reshape(-1, 2) if dtype.itemsize == 8 else words
            bits = lax.bitcast_convert_type(words, f"uint{8 * dtype.itemsize}").ravel()
            bits = bits[: math.prod(shape)].reshape(shape)
            is_bool = dtype == np.bool_
            x = bits.astype(dtype) if is_bool else lax.bitcast_convert_type(bits, dtype)
        return from_host(x, like)


@dataclass(frozen=True, eq=False)
class Packed:
    """A message with its small arrays in one block. Iteration yields all its arrays, unpacked."""

    packing: Packing
    block: np.ndarray
    large: tuple[np.ndarray, ...]

    def __iter__(self) -> Iterator[Any]:
        large = dict(zip(self.packing.large, self.large, strict=True))
        for k, like in enumerate(self.packing.like):
            yield from_host(large[k] if k in large else self.packing.on_host(self.block, k), like)


def unpack(
    messages: Sequence[Packed], joins: tuple[Assembly, ...], where: jax.sharding.Sharding
) -> list[Any]:
    """Copy messages to a device. There, one compiled program unpacks and assembles their values."""
    put = jax.device_put([(m.block, m.large) for m in messages], where)
    return _program(tuple(m.packing for m in messages), joins, where)(put)


@functools.cache
def _program(
    messages: tuple[Packing, ...], joins: tuple[Assembly, ...], where: jax.sharding.Sharding
) -> Any:
    def unpacked(put: Sequence[tuple[Any, Sequence[Any]]]) -> list[Any]:
        return [join([messages[m].array(k, *put[m]) for m, k in parts]) for join, parts in joins]

    return jax.jit(unpacked, out_shardings=where)


@jax.jit
def _packed(arrays: Sequence[Any]) -> jax.Array:
    words = [_as_words(x) for x in arrays]
    return jnp.concatenate([jnp.pad(w, (0, -w.size % _LINE)) for w in words])


def _as_words(x: Any) -> jax.Array:
    """Return the bits of an array as words of 32 bits, padded with zeros to a whole word."""
    x = (jax.random.key_data(x) if is_key(x) else x).ravel()
    x = x.astype(np.uint8) if x.dtype == np.bool_ else x
    each = 4 // x.dtype.itemsize
    if each > 1:
        # Integers, because a CPU moves small floats as float32, which changes the bits of a nan.
        x = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
        x = jnp.pad(x, (0, -x.size % each)).reshape(-1, each)
    return lax.bitcast_convert_type(x, np.uint32).ravel()


def _is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return True if an array is packed. Complex arrays and types such as int4 never are."""
    if math.prod(shape) * dtype.itemsize >= LARGE or jnp.issubdtype(dtype, np.complexfloating):
        return False
    info = jnp.finfo if jnp.issubdtype(dtype, np.floating) else jnp.iinfo
    return dtype == np.bool_ or info(dtype).bits == 8 * dtype.itemsize
