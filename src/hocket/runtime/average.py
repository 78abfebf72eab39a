"""The mean over replicas in several processes, from within their compiled programs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from hocket.native import library
from hocket.runtime.arena import Arena
from hocket.runtime.ring import SPIN_NS

TARGET = "hocket_average"

# Compiled programs point into this memory, and nobody tells when the last of them is gone.
_KEPT: list[Any] = []


class Average:
    """Averages arrays over `replicas` processes, of which this one is number `index`.

    It takes `nbytes` of zeros at `offset` of the arena, the same in every replica. Each call site
    gets its region of them when its program is compiled. Replicas compile the same programs, so
    they must do it in the same order; another order is an error.

        with averaging(Average(arena, 0, Average.nbytes([...], replicas=2), 2, index)):
            step(state)     # a jitted program, in which `averaged` is the mean of both processes'

    `delay` is a time in seconds that every mean takes longer, for experiments. On another
    `platform` than "cpu" the arrays go through the host.
    """

    def __init__(
        self, arena: Arena, offset: int, nbytes: int, replicas: int, index: int,
        delay: float = 0.0, platform: str = "cpu",
    ) -> None:  # fmt: skip
        self._address, self._platform, self._num_sites = arena.address + offset, platform, 0
        _KEPT.append(arena.memory)
        self._library = _registered() if platform == "cpu" else library()
        self._group = self._library.hocket_average_join(
            self._address, nbytes, replicas, index, SPIN_NS, int(1e9 * delay)
        )
        if self._group < 0:
            raise RuntimeError("this process has joined too many groups of replicas: start afresh.")

    @staticmethod
    def nbytes(sites: Sequence[Sequence[Any]], replicas: int) -> int:
        """The memory that call sites take, each given by its arrays (or their shapes)."""
        return library().hocket_average_header_bytes() + sum(
            replicas * (library().hocket_average_line_bytes() + 2 * _data_bytes(xs)) for xs in sites
        )

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        """The means; to be traced, once for every call site."""
        parts, nbytes = [_widened(x) for x in xs], _data_bytes(xs)
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in parts]
        tag, self._num_sites = self._num_sites, self._num_sites + 1
        if self._platform == "cpu":
            call = jax.ffi.ffi_call(TARGET, specs, has_side_effect=True)
            attributes = {"group": self._group, "tag": tag, "nbytes": nbytes}
            means = call(*parts, **{name: np.int64(n) for name, n in attributes.items()})
        else:
            offset = self._take(nbytes)
            means = io_callback(lambda *arrays: self._on_host(offset, tag, arrays), specs, *parts)
        return [_narrowed(mean, x) for mean, x in zip(means, xs, strict=True)]

    def counts(self) -> tuple[int, int, int]:
        """Calls so far, bytes of this replica, and nanoseconds waited for the others."""
        found = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
        self._library.hocket_average_counts(self._group, *map(ctypes.byref, found))
        calls, nbytes, waited = (count.value for count in found)
        return calls, nbytes, waited

    def close(self) -> None:
        """End every wait, now and later, in every replica, with an error there."""
        self._library.hocket_average_close(self._address)

    def _take(self, nbytes: int) -> int:
        offset = self._library.hocket_average_take(self._group, nbytes)
        if offset < 0:
            raise RuntimeError(
                f"the memory for `averaged` between processes is full: one more call site averages "
                f"{nbytes} bytes"
            )
        return offset

    def _on_host(self, offset: int, tag: int, arrays: Sequence[Any]) -> list[np.ndarray]:
        ins = [np.asarray(x, order="C") for x in arrays]
        outs = [np.empty_like(x) for x in ins]
        num, message = len(ins), ctypes.create_string_buffer(400)
        self._library.hocket_average_arrays(
            self._group, offset, tag, num,
            (ctypes.c_void_p * num)(*(x.ctypes.data for x in ins)),
            (ctypes.c_void_p * num)(*(x.ctypes.data for x in outs)),
            (ctypes.c_int64 * num)(*(x.size for x in ins)),
            (ctypes.c_int32 * num)(*(int(x.dtype == np.float64) for x in ins)),
            message, len(message),
        )  # fmt: skip
        if message.value:
            raise RuntimeError(message.value.decode())
        return outs


@cache
def _registered() -> ctypes.CDLL:
    """The library, with its function made known to XLA."""
    jax.local_devices(backend="cpu")  # a type that is registered before comes after its handlers
    loaded, capsule = library(), jax.ffi.pycapsule
    type_id, type_info = loaded.hocket_average_type_id(), loaded.hocket_average_type_info()
    kind = {"type_id": capsule(type_id), "type_info": capsule(type_info)}
    jax.ffi.register_ffi_type("hocket_average_site", cast("Any", kind), platform="cpu")
    stages = {"instantiate": loaded.hocket_average_instantiate, "execute": loaded.hocket_average}
    handlers = {stage: capsule(function) for stage, function in stages.items()}
    jax.ffi.register_ffi_target(TARGET, handlers, platform="cpu")
    return loaded


def _data_bytes(xs: Sequence[Any]) -> int:
    """What one replica's arrays take, each from a line of its own."""
    parts = [jax.eval_shape(_widened, x) for x in xs]
    sizes = [math.prod(x.shape) * x.dtype.itemsize for x in parts]
    return sum(n + -n % 64 for n in sizes)


def _widened(x: Any) -> jax.Array:
    """`x` in a type that means are taken in; a narrow float is summed in a wider one anyway."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([x.real, x.imag])
    return x if x.dtype in (jnp.float32, jnp.float64) else x.astype(jnp.float32)


def _narrowed(mean: jax.Array, like: jax.Array) -> jax.Array:
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        return jax.lax.complex(mean[0], mean[1])
    return mean.astype(like.dtype)
