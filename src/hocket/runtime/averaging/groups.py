"""Groups of replicas that average by the native library, through memory that all of them share."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast

import jax
import numpy as np

from hocket.runtime.averaging import Address, Epoch, Joined, Members, Sites, Space
from hocket.runtime.averaging.vectors import through_vectors, vector_bytes
from hocket.system.native import library
from hocket.system.rendezvous import Rendezvous
from hocket.system.ring import SPIN_NS
from hocket.system.shared_memory import pages

J = TypeVar("J", bound=Joined)


def without_memory(members: Members) -> str:
    """Why these replicas cannot average so, where they share no memory; or ""."""
    if members.shares_memory:
        return ""
    return "it goes through memory that all replicas share, and here they share none."


@dataclass(frozen=True)
class InMemory(Generic[J]):
    """A replica that the others find in the memory they share, so that it needs no address."""

    enter: Callable[[], J]
    """Takes its part of the memory. What replicas must tell each other goes through it, too."""
    address: Address = b""

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> J:
        return self.enter()

    def close(self) -> None:
        """Nothing to give back: the memory belongs to the run."""


class Group:
    """A replica among those that average by a target of the library.

    Each call site gets a number when its program is compiled. Replicas compile the same programs,
    so they must do it in the same order; another order is an error.
    """

    target: ClassVar[str]
    """Its name in the library, and for XLA."""
    counter: ClassVar[str]
    """The function that counts for it."""

    line: ClassVar[int] = 1
    """A vector takes a multiple of so many bytes."""

    def __init__(self, space: Space) -> None:
        self._space, self._library, self._num_sites = space, library(), 0
        self._group = -1
        """The number by which programs know it."""

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        """The means; with a `root`, what that replica has."""

        def mean(flat: jax.Array) -> jax.Array:
            spec = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
            nbytes = flat.nbytes + -flat.nbytes % self.line
            return self.called(spec, [flat], nbytes, root)

        return through_vectors(mean, xs)

    def called(self, specs: Any, parts: Sequence[jax.Array], nbytes: int, root: int) -> Any:
        """The results of the target, at a call site of its own."""
        tag, self._num_sites = self._num_sites, self._num_sites + 1
        given = {"group": self._group, "tag": tag, "nbytes": nbytes, "root": root}
        call = jax.ffi.ffi_call(self.target, specs, has_side_effect=True)
        return call(*parts, **{name: np.int64(n) for name, n in given.items()})

    def counts(self) -> tuple[int, int, int]:
        count = getattr(self._library, self.counter)
        found = [ctypes.c_int64() for _ in count.argtypes[1:]]
        count(self._group, *map(ctypes.byref, found))
        calls, nbytes, *waited = (number.value for number in found)
        return calls, nbytes, sum(waited)  # not every target knows how long

    def check(self) -> None:
        """A call that fails says so itself."""

    def close(self) -> None:
        self._library.hocket_average_close(self._space.address)

    def free(self) -> None:
        """Nothing to free: the memory belongs to the run."""


class GpuGroup(Group, ABC):
    """A group whose processes tell each other something before, in memory behind their group's."""

    def __init__(self, space: Space, replicas: int, index: int, sites: Sites) -> None:
        control = control_bytes(sites, replicas)
        super().__init__(space._replace(nbytes=control))
        self._replicas, self._index = replicas, index
        self._rendezvous = Rendezvous(space.file, space.offset + control, replicas, index)
        with self._rendezvous.or_tell_failure():
            self._enter(self._rendezvous.tell(self._introduction(sites)))
            self._rendezvous.tell(b"")  # now all have entered
            register(self.target, "CUDA")

    def close(self) -> None:
        self._rendezvous.fail("another replica has given up")
        super().close()

    @abstractmethod
    def _introduction(self, sites: Sites) -> bytes:
        """The bytes that the others need to know of this replica."""

    @abstractmethod
    def _enter(self, told: Sequence[bytes]) -> None:
        """Enter the group, given what all replicas have told."""

    def _compared(self) -> int:
        """The group in which replicas compare what they are about to average."""
        return joined_group(self._space, self._replicas, self._index)


def control_bytes(sites: Sites, replicas: int) -> int:
    """The shared memory in which replicas compare what they are about to average."""
    vectors = sum(len(vector_bytes(xs)) for xs in sites)
    lines = vectors * replicas * library().hocket_average_line_bytes()
    return pages(library().hocket_average_header_bytes() + lines)


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
def register(target: str, platform: str) -> None:
    """Make a function of the library known to XLA, with the type of its sites."""
    # A type that is registered before its platform has started comes after its handlers.
    jax.local_devices(backend="cpu" if platform == "cpu" else None)
    loaded, capsule = library(), jax.ffi.pycapsule
    type_id, type_info = loaded[f"{target}_type_id"], loaded[f"{target}_type_info"]
    type_id.restype = type_info.restype = ctypes.c_void_p
    kind = {"type_id": capsule(type_id()), "type_info": capsule(type_info())}
    jax.ffi.register_ffi_type(f"{target}_site", cast("Any", kind), platform=platform)
    stages = {"instantiate": loaded[f"{target}_instantiate"], "execute": loaded[target]}
    handlers = {stage: capsule(function) for stage, function in stages.items()}
    jax.ffi.register_ffi_target(target, handlers, platform=platform)
