"""A message in one block of memory: all of its small arrays are one transfer from or to a device.

Each array by itself is a transfer of its own, and somebody waits for each. So the end of a channel
on an accelerator has one compiled program lay the arrays next to each other, as words of 32 bits,
and copies those to the host at once; where they arrive, one program takes them apart, and puts the
samples of several senders together. The words lie as the arrays of a slot do, so each end packs or
does not, and the other one sees no difference. Nothing is rounded: bits are moved.
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

from hocket.runtime.channels.host_arrays import from_host, host_spec, is_key, to_host, with_impl
from hocket.runtime.channels.joins import Assembly
from hocket.system.ring import Spec, slot_layout

LARGE = 1 << 20
"""Bytes from which an array goes by itself, not to be copied once more. An estimate: at 50 GB/s so
many take 20 us, about what a transfer more costs."""

_LINE = 16  # words, of 64 bytes: where the arrays of a slot begin


def packs(asked: bool | None, devices: Sequence[Any], *, sends: bool, loops: bool = False) -> bool:
    """Whether the end of a channel on these devices packs, if nobody asked for it or against it.

    An accelerator does. A CPU device only where it receives: sending needs no transfer, but JAX
    takes 12 arrays one by one two to three times as long as one program (crossings:
    `benchmarks/packing.py`); in a loop that crosses places a program reads the host's arrays as
    they are. On several devices an array is in parts, which go by themselves.
    """
    usual = devices[0].platform != "cpu" or not (sends or loops)
    return len(devices) == 1 and (usual if asked is None else asked)


@functools.cache
def packing(like: tuple[jax.ShapeDtypeStruct, ...]) -> Packing:
    """One for all messages of these arrays, so that they share their programs too."""
    return Packing(like)


@dataclass(frozen=True, eq=False)
class Packing:
    """How the arrays of one message lie in a slot: small ones first, so that they are one block."""

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
        """The words of each small array, and how many there are in all."""
        specs = [self._host[k] for k in self.small]
        starts = [start // 4 for start in slot_layout(specs)[0]]
        counts = [math.ceil(math.prod(shape) * dtype.itemsize / 4) for shape, dtype in specs]
        found = {k: slice(a, a + n) for k, a, n in zip(self.small, starts, counts, strict=True)}
        return found, sum(n + -n % _LINE for n in counts)

    def pays(self) -> bool:
        """Whether there is anything to save: several arrays that would be a transfer each."""
        return sum(math.prod(self.like[k].shape) > 0 for k in self.small) > 1

    def specs(self, *, packed: bool) -> list[Spec]:
        """What a slot has in it, as an end sees it that packs, or one that does not."""
        if packed:
            return [((self._words[1],), np.dtype(np.uint32)), *(self._host[k] for k in self.large)]
        return [self._host[k] for k in (*self.small, *self.large)]

    def to_slot(self, message: Sequence[Any], *, packed: bool) -> list[np.ndarray]:
        """A message as those `specs` have it."""
        small, large = ([message[k] for k in chosen] for chosen in (self.small, self.large))
        if packed:
            # What a host function returned is on the host, and need not go to the device and back.
            here = all(isinstance(x, jax.Array) for x in small)
            small = [_packed(small) if here else self._packed_on_host(small)]
        arrays = [jax.random.key_data(x) if is_key(x) else x for x in (*small, *large)]
        for x in arrays if packed else ():  # each copy is begun before any has to end
            if isinstance(x, jax.Array):
                x.copy_to_host_async()
        return [np.asarray(x) for x in arrays]

    def from_slot(self, arrays: Sequence[np.ndarray], *, packed: bool) -> Any:
        """The message that arrived as these arrays, or a `Packed`.

        They must not be views of memory that is used again: JAX takes aligned memory as it is.
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
        """A small array in a block, as it lies there."""
        shape, dtype = self._host[k]
        nbytes = math.prod(shape) * dtype.itemsize
        return block[self._words[0][k]].view(np.uint8)[:nbytes].view(dtype).reshape(shape)

    def array(self, k: int, block: Any, large: Sequence[Any]) -> Any:
        """One of the arrays, in a program."""
        like, (shape, dtype) = self.like[k], self._host[k]
        if k in self.large:
            x = large[self.large.index(k)]
        else:
            words = block[self._words[0][k]]
            words = words.reshape(-1, 2) if dtype.itemsize == 8 else words
            bits = np.uint8 if dtype == np.bool_ else dtype
            x = lax.bitcast_convert_type(words, bits).ravel()[: math.prod(shape)]
            x = x.reshape(shape).astype(dtype)
        return with_impl(x, like) if is_key(like) else x


@dataclass(frozen=True, eq=False)
class Packed:
    """A message out of a slot, its small arrays in one block; as a sequence, those of the host."""

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
    """What is wanted of some messages, on a device: a transfer for each of them, and a program."""
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
    """The bits of an array, with zeros up to a whole word."""
    x = (jax.random.key_data(x) if is_key(x) else x).ravel()
    x = x.astype(np.uint8) if x.dtype == np.bool_ else x
    each = 4 // x.dtype.itemsize
    x = jnp.pad(x, (0, -x.size % each)).reshape(-1, each) if each > 1 else x
    return lax.bitcast_convert_type(x, np.uint32).ravel()


def _is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether an array is packed; one of complex numbers, or of parts of bytes, is not."""
    if math.prod(shape) * dtype.itemsize >= LARGE or jnp.issubdtype(dtype, np.complexfloating):
        return False
    info = jnp.finfo if jnp.issubdtype(dtype, np.floating) else jnp.iinfo
    return dtype == np.bool_ or info(dtype).bits == 8 * dtype.itemsize
