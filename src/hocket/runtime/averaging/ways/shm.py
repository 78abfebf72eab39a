"""Means through the host's memory: the way that always goes.

On a CPU a program's arrays are averaged where they are. From a GPU they are copied to the host and
back, and the thread that runs the program waits meanwhile.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import jax
import numpy as np

from hocket.runtime.averaging import Members, Sites, Space
from hocket.runtime.averaging.in_memory import InMemory, without_memory
from hocket.runtime.averaging.vectors import narrowed, through_vectors, vector_bytes, widened
from hocket.system.native import library
from hocket.system.ring import SPIN_NS

TARGET, CUDA_TARGET = "hocket_average", "hocket_reduce_shm"


class Shm:
    """The way, for `averaging.ways`."""

    name, preference = "shm", 0

    def note(self, members: Members) -> str:
        return "through the host's memory"

    def why_not(self, members: Members) -> str:
        return without_memory(members)

    def is_choice(self, members: Members) -> bool:
        return True

    def room(self, members: Members, sites: Sites) -> int:
        return nbytes(sites, len(members))

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[OnHost]:
        assert space is not None
        made = OnHost if members.device(index).platform == "cpu" else OnGpu
        return InMemory(lambda: made(space, len(members), index, members.delay))


class OnHost:
    """Averages arrays over `replicas` processes, of which this one is number `index`.

    Each call site gets its region of the memory when its program is compiled. Replicas compile the
    same programs, so they must do it in the same order; another order is an error. `delay` is a
    time in seconds that every mean takes longer, for experiments.
    """

    def __init__(self, space: Space, replicas: int, index: int, delay: float = 0.0) -> None:
        self._address, self._num_sites = space.address, 0
        self._library = self._registered()
        self._group = joined_group(space, replicas, index, delay)

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        parts = [widened(x) for x in xs]
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in parts]
        call = jax.ffi.ffi_call(TARGET, specs, has_side_effect=True)
        means = call(*parts, **self._attributes(_leaf_bytes(xs), root))
        return [narrowed(mean, x) for mean, x in zip(means, xs, strict=True)]

    def counts(self) -> tuple[int, int, int]:
        found = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
        self._library.hocket_average_counts(self._group, *map(ctypes.byref, found))
        calls, nbytes, waited = (count.value for count in found)
        return calls, nbytes, waited

    def check(self) -> None:
        """A call that fails says so itself."""

    def close(self) -> None:
        self._library.hocket_average_close(self._address)

    def free(self) -> None:
        """Nothing to free: the memory belongs to the run."""

    def _attributes(self, nbytes: int, root: int) -> dict[str, np.int64]:
        tag, self._num_sites = self._num_sites, self._num_sites + 1
        given = {"group": self._group, "tag": tag, "nbytes": nbytes, "root": root}
        return {name: np.int64(n) for name, n in given.items()}

    def _registered(self) -> ctypes.CDLL:
        return registered(TARGET, "hocket_average", "cpu")


class OnGpu(OnHost):
    """The same for arrays of a GPU."""

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        def mean(flat: jax.Array) -> jax.Array:
            spec = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
            call = jax.ffi.ffi_call(CUDA_TARGET, spec, has_side_effect=True)
            return call(flat, **self._attributes(_lines(flat.nbytes), root))

        return through_vectors(mean, xs)

    def _registered(self) -> ctypes.CDLL:
        return registered(CUDA_TARGET, "hocket_reduce_shm", "CUDA")


AVERAGE = Shm()


def nbytes(sites: Sites, replicas: int) -> int:
    """The memory that call sites take, as arrays or as vectors."""
    header, line = (
        library().hocket_average_header_bytes(), library().hocket_average_line_bytes()
    )  # fmt: skip
    wanted = [
        max(line + 2 * _leaf_bytes(xs), sum(line + 2 * _lines(n) for n in vector_bytes(xs)))
        for xs in sites
    ]
    return header + replicas * sum(wanted)


def joined_group(space: Space, replicas: int, index: int, delay: float = 0.0) -> int:
    """The number by which programs know a group with this memory."""
    # Compiled programs and threads look into this memory, and nobody tells when the last of them
    # has: so it stays, also while Python ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(space.file.memory))
    group = library().hocket_average_join(
        space.address, space.nbytes, replicas, index, SPIN_NS, int(1e9 * delay)
    )
    if group < 0:
        raise RuntimeError("this process has joined too many groups of replicas: start afresh.")
    return group


@cache
def registered(target: str, name: str, platform: str) -> ctypes.CDLL:
    """The library, with one of its functions made known to XLA, and the type of its sites."""
    # A type that is registered before its platform has started comes after its handlers.
    jax.local_devices(backend="cpu" if platform == "cpu" else None)
    loaded, capsule = library(), jax.ffi.pycapsule
    type_id, type_info = loaded[f"{name}_type_id"], loaded[f"{name}_type_info"]
    type_id.restype = type_info.restype = ctypes.c_void_p
    kind = {"type_id": capsule(type_id()), "type_info": capsule(type_info())}
    jax.ffi.register_ffi_type(f"{name}_site", cast("Any", kind), platform=platform)
    stages = {"instantiate": loaded[f"{name}_instantiate"], "execute": loaded[name]}
    handlers = {stage: capsule(function) for stage, function in stages.items()}
    jax.ffi.register_ffi_target(target, handlers, platform=platform)
    return loaded


def _leaf_bytes(xs: Sequence[Any]) -> int:
    """What one replica's arrays take, each from a line of its own."""
    parts = [jax.eval_shape(widened, x) for x in xs]
    return sum(_lines(math.prod(x.shape) * x.dtype.itemsize) for x in parts)


def _lines(nbytes: int) -> int:
    return nbytes + -nbytes % 64
