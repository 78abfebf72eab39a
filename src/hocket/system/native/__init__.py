"""The compiled part of hocket: one library of C functions that works with every version of Python.

average.cpp, reduce_*.cpp, reduce.cu   means over replicas, on CPUs and GPUs
leaves.h, waiters.h                    the arrays of a call, and threads that may wait for others
tcp_call.h, peer.h                     a call over TCP, and its connections
ring.cpp, latest.cpp, event.h          messages and events in shared memory
tcp.cpp, tcp_end.h, tcp_pump.h         messages of one size over a TCP connection
slots.cpp                              messages in the memory of one GPU
host.cpp, native_call.h                host functions that compiled programs call
cuda.h, numbered.h, say.h              calls of the CUDA driver, objects by number, error texts
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).parent / "libhocket.so"
KERNEL = Path(__file__).parent / "reduce.cu"
"""The source file of the GPU kernels. They are compiled when they are first needed."""

_Counts = POINTER(c_uint64)
_Pointers, _Sizes, _Ints = POINTER(c_void_p), POINTER(c_int64), POINTER(c_int)
_TEXT = (c_char_p, c_int64)  # a buffer for the text of an error, and its size
_Pair = [c_void_p] * 2
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "hocket_ring_header_bytes": (c_int64, []),
    "hocket_ring_acquire": (c_int, [c_void_p, c_uint32, c_int64, c_int64]),
    "hocket_ring_publish": (None, [c_void_p]),
    "hocket_ring_lease": (c_int, [c_void_p, c_uint32, c_int64, c_int64]),
    "hocket_ring_release": (None, [c_void_p]),
    "hocket_ring_close": (None, [c_void_p]),
    "hocket_ring_counts": (None, [c_void_p, _Counts, _Counts, _Counts]),
    "hocket_latest_header_bytes": (c_int64, []),
    "hocket_latest_begin": (c_uint64, [c_void_p]),
    "hocket_latest_publish": (None, [c_void_p]),
    "hocket_latest_newest": (c_uint64, [c_void_p]),
    "hocket_latest_is_whole": (c_int, [c_void_p, c_uint64, c_uint64]),
    "hocket_tcp_make": (c_void_p, [c_int, c_uint32, c_int64, c_int]),
    "hocket_tcp_place": (None, [c_void_p, c_int, c_void_p]),
    "hocket_tcp_free": (None, [c_void_p]),
    "hocket_tcp_attach": (None, [c_void_p, c_int]),
    "hocket_tcp_close": (None, [c_void_p]),
    "hocket_tcp_acquire": (c_int, [c_void_p, c_int64, c_int64]),
    "hocket_tcp_publish": (None, [c_void_p, c_int64]),
    "hocket_tcp_lease": (c_int, [c_void_p, c_int64, c_int64]),
    "hocket_tcp_release": (None, [c_void_p]),
    "hocket_tcp_ready": (c_int, [c_void_p]),
    "hocket_tcp_arrived_ns": (c_int64, [c_void_p]),
    "hocket_tcp_watch": (None, [c_void_p]),
    "hocket_tcp_await": (c_int64, [c_void_p, c_uint64, c_int64]),
    "hocket_tcp_waited_ns": (c_uint64, [c_void_p]),
    "hocket_tcp_state": (c_int, [c_void_p]),
    "hocket_event_bytes": (c_int64, []),
    "hocket_event_count": (c_uint32, [c_void_p]),
    "hocket_event_signal": (None, [c_void_p]),
    "hocket_event_wait": (None, [c_void_p, c_uint32, c_int64]),
    "hocket_host_open": (c_int, [c_void_p, c_int, _Pointers, _Sizes, c_int, _Pointers, _Sizes]),
    "hocket_host_close": (c_int, [c_int]),
    "hocket_host_hasten": (None, [c_int, c_void_p, c_void_p]),
    "hocket_host_slow": (c_int, [c_int]),
    "hocket_host_note": (None, [c_int, c_int]),
    "hocket_host_noted": (c_int64, [c_int, c_void_p, c_int64]),
    "hocket_pool_step": (c_int, [c_void_p, c_void_p, _Pointers, _Pointers]),
    "hocket_pool_open": (
        c_void_p,
        [*_Pair, *[c_int64] * 2, *_Pair, *[c_int, _Pointers, _Sizes] * 2, _Sizes, c_void_p],
    ),
    "hocket_pool_close": (None, [c_void_p]),
    "hocket_average_header_bytes": (c_int64, []),
    "hocket_average_line_bytes": (c_int64, []),
    "hocket_average_join": (c_int, [c_void_p, c_int64, c_int32, c_int32, c_int64, c_int64]),
    "hocket_average_counts": (None, [c_int, _Sizes, _Sizes, _Sizes]),
    "hocket_average_close": (None, [c_void_p]),
    "hocket_average_compare": (None, [c_int, c_int64, c_int64, c_int64, c_int32, *_TEXT]),
    "hocket_reduce_tcp_join": (c_int, [c_int, c_int, _Ints, c_int64, c_int64]),
    "hocket_reduce_tcp_counts": (None, [c_int, _Sizes, _Sizes, _Sizes]),
    "hocket_reduce_tcp_close": (None, [c_int, c_int]),
    "hocket_slots_make": (c_int, [c_int, c_void_p, c_int64, c_char_p, *_TEXT]),
    "hocket_slots_open": (c_int, [c_int, c_void_p, c_char_p, *_TEXT]),
    "hocket_cuda_capability": (None, [c_int, _Ints, _Ints, *_TEXT]),
    "hocket_reduce_ipc_max_ranks": (c_int, []),
    "hocket_reduce_ipc_site_bytes": (c_int64, [c_int64]),
    "hocket_reduce_ipc_header_bytes": (c_int64, []),
    "hocket_reduce_ipc_make": (c_int, [c_int, c_int64, c_char_p, c_char_p, c_char_p, *_TEXT]),
    "hocket_reduce_ipc_open": (
        None,
        [c_int, c_int, c_int, c_char_p, c_int, c_void_p, c_int64, c_int64, *_TEXT],
    ),
    "hocket_reduce_ipc_failure": (c_int, [c_int, _Ints]),
    "hocket_reduce_ipc_counts": (None, [c_int, _Sizes, _Sizes, _Sizes]),
    "hocket_reduce_ipc_free": (None, [c_int, c_int]),
    "hocket_reduce_nccl_id": (None, [c_char_p, c_char_p, *_TEXT]),
    "hocket_reduce_nccl_join": (
        c_int,
        [c_int, c_int, c_int, c_char_p, c_int, c_void_p, *_TEXT],
    ),
    "hocket_reduce_nccl_aborted": (c_int, [c_int]),
    "hocket_reduce_nccl_counts": (None, [c_int, _Sizes, _Sizes]),
}


class Unavailable(RuntimeError):
    """Raised if something is not possible on this machine or in this run. The message says why."""


def pointers(arrays: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """Return the addresses and the sizes in bytes of some arrays, for a C function."""
    num = len(arrays)
    return (
        (c_void_p * num)(*(x.ctypes.data for x in arrays)),
        (c_int64 * num)(*(x.nbytes for x in arrays)),
    )


@cache
def library() -> ctypes.CDLL:
    """Return the library, with the types of its functions set. The first call loads it."""
    if not PATH.is_file():
        raise RuntimeError(
            f"hocket was installed without its compiled part ({PATH.name}), because there was no "
            f"C++ compiler. Install one (on Debian: `apt-get install g++`), then "
            f"reinstall hocket with pip."
        )
    loaded = ctypes.CDLL(str(PATH))
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(loaded, name)  # `loaded[name]` would not cache the function
        except AttributeError:
            raise RuntimeError(
                f"{PATH.name} is older than this hocket and has no `{name}`: reinstall hocket "
                f"with pip."
            ) from None
        function.restype, function.argtypes = result, arguments
    return loaded


def checked(call: Any, *arguments: Any) -> Any:
    """Call a C function whose last arguments are a buffer for an error text and its size.

    If the function writes a text, raise `Unavailable` with it.
    """
    message = ctypes.create_string_buffer(600)
    result = call(*arguments, message, len(message))
    if message.value:
        raise Unavailable(message.value.decode(errors="replace"))
    return result
