"""The small arrays of a message in one block of memory, which is one copy from or to a device.

Unpacked, each array is a copy of its own, and each copy is waited for. So the end of a channel on
an accelerator packs: one compiled program lays the arrays next to each other, as words of 32 bits,
and one copy brings them to the host. At the other end, one program takes the block apart, and joins
the samples of several senders. The words lie as the arrays of a slot do, so each end may pack or
not, and the other sees no difference. Only bits are moved, so nothing is rounded.
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
"""The bytes of the smallest array that is not packed, since packing copies it once more. This is an
estimate: at 50 GB/s that copy takes 20 us, which is about the cost of one more transfer."""

_LINE = 16  # words of 32 bits in 64 bytes: the arrays of a slot begin at multiples of it


def packs(asked: bool | None, devices: Sequence[Any], *, sends: bool, loops: bool = False) -> bool:
    """Return True if the end of a channel on these devices packs; `asked` decides if it is set.

    An accelerator packs. A CPU device packs only to receive outside of loops: JAX takes in 12
    arrays one by one two to three times slower than one program does (`benchmarks/packing.py`). To
    send, a CPU needs no transfer, and in a loop that crosses places its program reads the host's
    arrays as they are. No end on several devices packs, because each device has its own part of an
    array.
    """
    usual = devices[0].platform != "cpu" or not (sends or loops)
    return len(devices) == 1 and (usual if asked is None else asked)


@functools.cache
def packing(like: tuple[jax.ShapeDtypeStruct, ...]) -> Packing:
    """Return the one packing for messages of these arrays, so that they share compiled programs."""
    return Packing(like)


@dataclass(frozen=True, eq=False)
class Packing:
    """The order of a message's arrays in a slot: small ones first, so that they are one block."""

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
        """The words of each small array in the block, and the number of words in the block."""
        specs = [self._host[k] for k in self.small]
        starts = [start // 4 for start in slot_layout(specs)[0]]
        counts = [math.ceil(math.prod(shape) * dtype.itemsize / 4) for shape, dtype in specs]
        words = {k: slice(a, a + n) for k, a, n in zip(self.small, starts, counts, strict=True)}
        return words, sum(n + -n % _LINE for n in counts)

    def pays(self) -> bool:
        """Return True if packing saves a transfer: at least two small arrays are not empty."""
        return sum(math.prod(self.like[k].shape) > 0 for k in self.small) > 1

    def specs(self, *, packed: bool) -> list[Spec]:
        """Return the arrays of a slot, as an end sees them if it is `packed` or if it is not."""
        if packed:
            return [((self._words[1],), np.dtype(np.uint32)), *(self._host[k] for k in self.large)]
        return [self._host[k] for k in (*self.small, *self.large)]

    def to_slot(self, message: Sequence[Any], *, packed: bool) -> list[np.ndarray]:
        """Return the arrays of a message as `specs` describes them."""
        small, large = ([message[k] for k in chosen] for chosen in (self.small, self.large))
        if packed:
            # Results of host functions are on the host already, and stay there.
            on_device = all(isinstance(x, jax.Array) for x in small)
            small = [_packed(small) if on_device else self._packed_on_host(small)]
        arrays = [jax.random.key_data(x) if is_key(x) else x for x in (*small, *large)]
        for x in arrays if packed else ():  # begin all copies before waiting for any
            if isinstance(x, jax.Array):
                x.copy_to_host_async()
        return [np.asarray(x) for x in arrays]

    def from_slot(self, arrays: Sequence[np.ndarray], *, packed: bool) -> Any:
        """Return the message that arrived as these arrays; a `Packed` if they are packed.

        They must not be views of a slot. JAX on a CPU takes aligned memory without a copy, so its
        arrays would change when the sender fills the slot again.
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
        """Return a small array as a view of the block in which it lies."""
        shape, dtype = self._host[k]
        nbytes = math.prod(shape) * dtype.itemsize
        return block[self._words[0][k]].view(np.uint8)[:nbytes].view(dtype).reshape(shape)

    def array(self, k: int, block: Any, large: Sequence[Any]) -> Any:
        """Return one of the arrays, inside a compiled program."""
        like, (shape, dtype) = self.like[k], self._host[k]
        if k in self.large:
            x = large[self.large.index(k)]
        else:
            words = block[self._words[0][k]]
            words = words.reshape(-1, 2) if dtype.itemsize == 8 else words
            bits = np.uint8 if dtype == np.bool_ else dtype
            x = lax.bitcast_convert_type(words, bits).ravel()[: math.prod(shape)]
            x = x.reshape(shape).astype(dtype)
        return from_host(x, like)


@dataclass(frozen=True, eq=False)
class Packed:
    """A message with its small arrays in one block. Iterating over it yields arrays of the host."""

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
    """Put messages on a device, and assemble their values there, in one compiled program."""
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
    """Return the bits of an array as words, with zeros up to a whole word."""
    x = (jax.random.key_data(x) if is_key(x) else x).ravel()
    x = x.astype(np.uint8) if x.dtype == np.bool_ else x
    each = 4 // x.dtype.itemsize
    x = jnp.pad(x, (0, -x.size % each)).reshape(-1, each) if each > 1 else x
    return lax.bitcast_convert_type(x, np.uint32).ravel()


def _is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return True for an array that is packed. Complex numbers, int4 and the like never are."""
    if math.prod(shape) * dtype.itemsize >= LARGE or jnp.issubdtype(dtype, np.complexfloating):
        return False
    info = jnp.finfo if jnp.issubdtype(dtype, np.floating) else jnp.iinfo
    return dtype == np.bool_ or info(dtype).bits == 8 * dtype.itemsize
