"""A host function is ordinary Python or native code inside a traced program: environments, say.

What is traced is one equation. A program compiled for one CPU device calls it by itself; otherwise
a place runs it in between its programs, and where one program does all, that calls back.
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
    """A host function at work, with whatever it keeps open; one that inherits keeps nothing."""

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        """Begin a call; it may go on elsewhere."""

    def finish(self) -> list[np.ndarray]:
        """What the call gave: arrays that are nobody else's."""
        ...

    def snapshot(self) -> dict[str, bytes] | None:
        """What it keeps, in pieces by a name; None where it cannot tell."""
        return None

    def restore(self, pieces: Mapping[str, bytes]) -> None:
        """Go on from those of these pieces that it needs; called before its first call."""
        return

    def overdue(self) -> Exception | None:
        """Of one that is watched: what hangs, asked from another thread."""
        return None

    def close(self) -> None:
        """Give back what it keeps open."""
        return


class NativeCall(NamedTuple):
    """A C function that makes calls in Python's stead where it can, see `native/native_call.h`."""

    address: int
    context: int
    owner: Any
    """Whatever has to stay alive for it."""


@runtime_checkable
class NativeFunction(Protocol):
    """A live function that need not be called through Python each time."""

    def native(self) -> NativeCall | None:
        """What to call instead, until this is closed; asked after a call that Python made."""


class HostFunction(Protocol):
    """What a program says of a host function: a frozen value with a hash and a short `repr`.

    All its arrays have the environments as their first axis, and it keeps them apart; unless it is
    one of a service's.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps_state(self) -> bool:
        """Whether a call depends on those before it. If not, anybody may call it at any time."""
        ...

    @property
    def service(self) -> Service | None:
        """What it works on, if others do too: the first argument is then the ticket."""

    @property
    def changes(self) -> bool:
        """Whether it changes something there: its first result is then the ticket."""
        ...

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        """The shapes and dtypes of its results."""
        ...

    def open(self, *, watched: bool = False, at: At | None = None) -> LiveFunction:
        """At work; `watched` says that somebody asks it whether it is overdue."""
        ...


class Caller(Protocol):
    """Whoever calls the host functions of a compiled program."""

    def __call__(self, of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]: ...

    def slot(self, of: HostFunction, ins: Specs, outs: Specs) -> int | None:
        """The number by which a program on the CPU calls a function; None: through Python."""


current_caller = jax.make_user_context(None)  # a part of every key in jax's caches


def call_host(of: HostFunction, *arrays: Any) -> list[Any]:
    """Call a host function from a traced program."""
    return host_p.bind(*(jnp.asarray(x) for x in arrays), of=of)


def calling(caller: Caller) -> AbstractContextManager[None]:
    """Within, programs are lowered so that their host functions are called by `caller`."""
    return cast(AbstractContextManager[None], current_caller(caller))


def call_once(of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Open a host function for a single call."""
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
            f"{of.name} runs on the host and keeps a state there, which a function that you jit "
            f"yourself cannot see to: use `hocket.run` or `hocket.iterate`."
        )


def _abstract(*avals: Any, of: HostFunction) -> list[Any]:
    specs = of.specs(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return [avals[0].update(shape=s.shape, dtype=s.dtype, weak_type=False) for s in specs]


def lower_by_callback(context: Any, *operands: Any, of: HostFunction) -> Any:
    caller: Caller | None = current_caller.value
    if caller is None:
        _check_stateless(of)  # here, since XLA would pass on no more than the text

    def call(*arrays: Any) -> tuple[np.ndarray, ...]:
        return tuple((caller or call_once)(of, [np.asarray(x) for x in arrays]))

    results, _, _ = mlir.emit_python_callback(
        context, call, None, operands, context.avals_in, context.avals_out,
        has_side_effect=of.keeps_state, returns_token=False,
    )  # fmt: skip
    return results


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, of: HostFunction) -> Any:
    """More rows: it keeps them apart anyway."""
    if of.service is not None:
        raise PlanError(
            f"the {of.service.name} is kept by a service, and `vmap` would make several of it: "
            f"train one seed at a time, and call its functions one after another."
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
