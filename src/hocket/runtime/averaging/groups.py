"""Groups of replicas that average with the native library."""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast

import jax
import numpy as np

from hocket.runtime.averaging import Address, Epoch, Joined, Members, Sites, Space
from hocket.runtime.averaging.vectors import narrowed, through_vectors, vector_bytes, widened
from hocket.system.native import library
from hocket.system.network.rendezvous import Rendezvous
from hocket.system.ring import SPIN_NS
from hocket.system.shared_memory import pages

J = TypeVar("J", bound=Joined)

LINE = 64
"""The alignment in bytes of every array in the memory of the host that replicas share."""


class SharedMemoryWay:
    """The methods that the ways through shared memory have in common."""

    def why_not(self, members: Members) -> str:
        if members.shares_memory:
            return ""
        return "it goes through memory that all replicas share, and here they share none."

    def is_choice(self, members: Members) -> bool:
        return True


@dataclass(frozen=True)
class InMemory(Generic[J]):
    """A listener without an address: the replicas find each other in the memory they share."""

    enter: Callable[[], J]
    """A function that joins the others through the shared memory, without their addresses."""
    address: Address = b""

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> J:
        return self.enter()

    def close(self) -> None:
        """Do nothing, because the memory belongs to the run."""


class Group:
    """One replica of a group that averages by an FFI target of the native library.

    Each call site gets a number when its program is compiled, and the number must be the same in
    all replicas. So all replicas must compile the same programs in the same order, or else the
    means fail with an error.
    """

    target: ClassVar[str]
    """The name of the FFI target, which is the same in the library and in XLA."""
    counter: ClassVar[str]
    """The name of the library's function that returns `counts`."""

    line: ClassVar[int] = 1
    """The alignment in bytes. The size of each vector is rounded up to a multiple of it."""

    def __init__(self) -> None:
        self._library, self._num_sites = library(), 0
        self._group = -1
        """The number that compiled programs use for this group."""

    def called(self, specs: Any, parts: Sequence[jax.Array], nbytes: int, root: int) -> Any:
        """Add a call of the FFI target to the program that is traced, and return its results."""
        tag, self._num_sites = self._num_sites, self._num_sites + 1
        given = {"group": self._group, "tag": tag, "nbytes": nbytes, "root": root}
        call = jax.ffi.ffi_call(self.target, specs, has_side_effect=True)
        return call(*parts, **{name: np.int64(n) for name, n in given.items()})

    def of_leaves(self, xs: Sequence[jax.Array], root: int = -1) -> list[jax.Array]:
        """Average arrays of the CPU, which the target takes as they are.

        If `root` is not -1, return the arrays of replica `root` instead of the means.
        """
        parts = [widened(x) for x in xs]
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in parts]
        means = self.called(specs, parts, leaf_bytes(xs), root)
        return [narrowed(mean, x) for mean, x in zip(means, xs, strict=True)]

    def counts(self) -> tuple[int, int, int]:
        count = getattr(self._library, self.counter)
        numbers = [ctypes.c_int64() for _ in count.argtypes[1:]]
        count(self._group, *map(ctypes.byref, numbers))
        calls, nbytes, *waited = (number.value for number in numbers)
        return calls, nbytes, sum(waited)  # some counters give no waiting time

    def check(self) -> None:
        """Do nothing, because a failed call raises its error when the program runs."""


class MemoryGroup(Group):
    """One replica of a group whose replicas meet in memory that all of them share."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._space = space

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        """Return the mean of each array, or, if `root` is not -1, the arrays of replica `root`."""

        def mean(flat: jax.Array) -> jax.Array:
            spec = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
            nbytes = flat.nbytes + -flat.nbytes % self.line
            return self.called(spec, [flat], nbytes, root)

        return through_vectors(mean, xs)

    def close(self) -> None:
        self._library.hocket_average_close(self._space.address)

    def free(self) -> None:
        """Do nothing, because the memory belongs to the run."""


class GpuGroup(MemoryGroup, ABC):
    """One replica of a group on GPUs. Before they average, the replicas exchange introductions.

    The introduction of a replica is the bytes that the others need to connect to it. Introductions
    pass through a `Rendezvous`, which lies in the shared memory, behind the memory of the group.
    """

    def __init__(self, space: Space, replicas: int, index: int, sites: Sites) -> None:
        control = control_bytes(sites, replicas)
        super().__init__(space._replace(nbytes=control))
        self._replicas, self._index = replicas, index
        self._rendezvous = Rendezvous(space.file, space.offset + control, replicas, index)
        with self._rendezvous.or_tell_failure():
            self._enter(self._rendezvous.tell(self._introduction(sites)))
            self._rendezvous.tell(b"")  # returns when all replicas have entered
            register(self.target, "CUDA")

    def close(self) -> None:
        self._rendezvous.fail("another replica has given up")
        super().close()

    @abstractmethod
    def _introduction(self, sites: Sites) -> bytes:
        """Return the bytes that the other replicas need to connect to this replica."""

    @abstractmethod
    def _enter(self, introductions: Sequence[bytes]) -> None:
        """Enter the group, given the introductions of all replicas."""

    def _compared(self) -> int:
        """Join the group that checks if all replicas average the same arrays. Return its number."""
        return joined_group(self._space, self._replicas, self._index)


def leaf_bytes(xs: Sequence[Any]) -> int:
    """Return the bytes of one replica's arrays, each rounded up to a multiple of `LINE`."""
    parts = [jax.eval_shape(widened, x) for x in xs]
    return sum(in_lines(math.prod(x.shape) * x.dtype.itemsize) for x in parts)


def in_lines(nbytes: int) -> int:
    return nbytes + -nbytes % LINE


def control_bytes(sites: Sites, replicas: int) -> int:
    """Return the size of the memory in which replicas check that they average the same arrays."""
    vectors = sum(len(vector_bytes(xs)) for xs in sites)
    lines = vectors * replicas * library().hocket_average_line_bytes()
    return pages(library().hocket_average_header_bytes() + lines)


def joined_group(space: Space, replicas: int, index: int, delay: float = 0.0) -> int:
    """Join the group of replicas in this memory. Return the number that programs use for it."""
    # Compiled programs and native threads hold addresses into this memory, and nothing tells when
    # the last of them is done. So this reference is never released, and the memory stays mapped
    # until the process ends, even while Python shuts down.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(space.file.memory))
    group = library().hocket_average_join(
        space.address, space.nbytes, replicas, index, SPIN_NS, int(1e9 * delay)
    )
    if group < 0:
        raise RuntimeError(
            "this process has joined too many groups of replicas: start a new process."
        )
    return group


@cache
def register(target: str, platform: str) -> None:
    """Register with XLA an FFI target of the native library and the type of its call sites' state.

    `native/call_site.h` defines the functions that are registered, and their names.
    """
    # Before the platform has started, JAX only queues registrations, and it later makes them in an
    # order in which the handlers come before the type that they need. So start the platform first.
    jax.local_devices(backend="cpu" if platform == "cpu" else None)
    loaded, capsule = library(), jax.ffi.pycapsule
    type_id, type_info = loaded[f"{target}_type_id"], loaded[f"{target}_type_info"]
    type_id.restype = type_info.restype = ctypes.c_void_p
    kind = {"type_id": capsule(type_id()), "type_info": capsule(type_info())}
    jax.ffi.register_ffi_type(f"{target}_site", cast("Any", kind), platform=platform)
    stages = {"instantiate": loaded[f"{target}_instantiate"], "execute": loaded[target]}
    handlers = {stage: capsule(function) for stage, function in stages.items()}
    jax.ffi.register_ffi_target(target, handlers, platform=platform)
