"""What a way to average on GPUs needs of the host: a group that compares, and errors as text."""

from __future__ import annotations

import jax
import numpy as np

from hocket.runtime.averaging import Sites
from hocket.runtime.averaging.vectors import vector_bytes
from hocket.system.native import library
from hocket.system.shared_memory import pages


def control_bytes(sites: Sites, replicas: int) -> int:
    """The shared memory in which replicas compare what they are about to average."""
    vectors = sum(len(vector_bytes(xs)) for xs in sites)
    lines = vectors * replicas * library().hocket_average_line_bytes()
    return pages(library().hocket_average_header_bytes() + lines)


def called(target: str, flat: jax.Array, group: int, tag: int, root: int) -> jax.Array:
    """The mean of a vector, by a handler of the library, at a call site of its own."""
    spec = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    given = {"group": group, "tag": tag, "nbytes": flat.nbytes, "root": root}
    call = jax.ffi.ffi_call(target, spec, has_side_effect=True)
    return call(flat, **{name: np.int64(n) for name, n in given.items()})
