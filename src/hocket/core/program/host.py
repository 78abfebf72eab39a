"""Host functions: ordinary code that a traced program calls, such as an environment in Python.

Each call is one equation of the program, and can run in three ways. A program compiled for one CPU
device calls the function itself. Otherwise, a place calls it between its compiled programs. If one
compiled program runs the whole step, it calls back into Python instead and waits for the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from hocket.core.program.service import At, Service
from hocket.errors import PlanError

Specs: TypeAlias = Sequence[jax.ShapeDtypeStruct]

host_p = Primitive("host")
host_p.multiple_results = True
source_info_util.register_exclusion(__file__)


class LiveFunction(Protocol):
    """An open host function, with its processes or files.

    A function that keeps no state can inherit all methods but `start` and `finish`.
    """

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        """Begin a call. It may go on in other threads or processes until `finish` is called."""

    def finish(self) -> list[np.ndarray]:
        """Return the results of the call, in arrays that nobody else holds."""
        ...

    def snapshot(self) -> dict[str, bytes] | None:
        """Return the state in named pieces; None if the function cannot give it."""

    def restore(self, pieces: Mapping[str, bytes]) -> None:
        """Restore the state from this function's pieces; `pieces` may also hold other functions'.

        Called before any `start`.
        """

    def overdue(self) -> Exception | None:
        """Return an error that names what hangs, or None.

        Another thread calls this during a call, if the function was opened with `watched`.
        """

    def close(self) -> None:
        """End the processes and close the files."""


class NativeCall(NamedTuple):
    """A C function that does the work of a host function, so that calls need no Python.

    It may still hand a call over to Python: see `native/native_call.h`.
    """

    address: int
    context: int
    owner: Any
    """The object to keep alive for as long as the C function may be called."""


@runtime_checkable
class NativeFunction(Protocol):
    """A live function that can offer a C function, so that most calls need no Python."""

    def native(self) -> NativeCall | None:
        """Return the C function to call from now on until `close`; None to go on in Python.

        The runtime asks again after every call through Python.
        """


class HostFunction(Protocol):
    """The declaration of a host function in a program: frozen and hashable, with a short `repr`.

    The first axis of each of its arrays is the environment axis. One environment must not influence
    another. A function of a service may break both rules.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps_state(self) -> bool:
        """True if a call depends on earlier ones. If not, anybody may call it at any time."""
        ...

    @property
    def service(self) -> Service | None:
        """The service that the function uses, or None.

        The first argument of a service's function is a ticket, which orders the call among others.
        """

    @property
    def changes(self) -> bool:
        """True if the function changes its service's content.

        Its first result is then a new ticket, which puts later calls in order after this one.
        """
        ...

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        """Return the shapes and dtypes of the results."""
        ...

    def open(self, *, watched: bool = False, at: At | None = None) -> LiveFunction:
        """Open the function. If `watched`, another thread calls `overdue` to see if it hangs."""
        ...


class Caller(Protocol):
    """An object that calls host functions for a compiled program."""

    def __call__(self, of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]: ...

    def slot(self, of: HostFunction, ins: Specs, outs: Specs) -> int | None:
        """Return the number by which compiled CPU programs call the function `of`.

        Return None to let them call it through a Python callback of JAX.
        """


# This setting is in the key of every jax cache, so no program is reused with another caller.
current_caller = jax.make_user_context(None)


def call_host(of: HostFunction, *arrays: Any) -> list[Any]:
    """Call a host function from a traced program."""
    return host_p.bind(*(jnp.asarray(x) for x in arrays), of=of)


def calling(caller: Caller) -> AbstractContextManager[None]:
    """Inside this context, lower programs so that `caller` calls their host functions."""
    return cast(AbstractContextManager[None], current_caller(caller))


def call_once(of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Open a host function, call it once, close it, and return the results of the call."""
    _check_stateless(of)
    live = of.open()
    try:
        live.start(arrays)
        return live.finish()
    finally:
        live.close()


def _check_stateless(of: HostFunction) -> None:
    if of.keeps_state:
        raise ValueError(
            f"{of.name} runs on the host and keeps a state there, so a function that you jit "
            f"yourself cannot call it: use `hocket.run` or `hocket.iterate`."
        )


def _abstract(*avals: Any, of: HostFunction) -> list[Any]:
    specs = of.specs(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return [avals[0].update(shape=s.shape, dtype=s.dtype, weak_type=False) for s in specs]


def lower_by_callback(context: Any, *operands: Any, of: HostFunction) -> Any:
    caller: Caller | None = current_caller.value
    if caller is None:
        _check_stateless(of)  # now, since XLA reduces an error in a callback to its text

    def call(*arrays: Any) -> tuple[np.ndarray, ...]:
        return tuple((caller or call_once)(of, [np.asarray(x) for x in arrays]))

    results, _, _ = mlir.emit_python_callback(
        context, call, None, operands, context.avals_in, context.avals_out,
        has_side_effect=of.keeps_state, returns_token=False,
    )  # fmt: skip
    return results


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, of: HostFunction) -> Any:
    """Call the function once for all rows of a `vmap`. It sees the rows as environments."""
    if of.service is not None:
        raise PlanError(
            f"a service keeps one {of.service.name}, and `vmap` would need several: train one seed "
            f"at a time, and call the service's functions without `vmap`."
        )
    size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
    stacked = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, dims, strict=True)
    ]
    outs = host_p.bind(*(x.reshape(-1, *x.shape[2:]) for x in stacked), of=of)
    return [y.reshape(size, -1, *y.shape[1:]) for y in outs], [0] * len(outs)


def _evaluate(*arrays: Any, of: HostFunction) -> list[Any]:
    return [jnp.asarray(x) for x in call_once(of, [np.asarray(x) for x in arrays])]


host_p.def_impl(_evaluate)
host_p.def_abstract_eval(_abstract)
mlir.register_lowering(host_p, lower_by_callback)
batching.primitive_batchers[host_p] = _batch
