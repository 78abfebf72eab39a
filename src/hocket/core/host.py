"""A host function is ordinary Python or native code inside a traced program: environments, say.

What is traced is one equation. A program compiled for one CPU device calls it by itself; otherwise
a place runs it in between its programs, and where one program does all, that calls back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.interpreters import batching, mlir

from hocket.core.graph import Block, Graph, Loop, Node, named_by
from hocket.core.service import At, Service
from hocket.errors import PlanError

Specs: TypeAlias = Sequence[jax.ShapeDtypeStruct]

host_p = Primitive("host")
host_p.multiple_results = True
source_info_util.register_exclusion(__file__)


class LiveFunction(Protocol):
    """A host function at work, with whatever it keeps open."""

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        """Begin a call; it may go on elsewhere."""
        ...

    def finish(self) -> list[np.ndarray]:
        """What the call gave: arrays that are nobody else's."""
        ...

    def snapshot(self) -> dict[str, bytes] | None:
        """What it keeps, in pieces by a name; None where it cannot tell."""
        ...

    def restore(self, pieces: Mapping[str, bytes]) -> None:
        """Go on from those of these pieces that it needs; called before its first call."""
        ...

    def overdue(self) -> Exception | None:
        """Of one that is watched: what hangs, asked from another thread."""
        ...

    def close(self) -> None: ...


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
        ...


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
        ...

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


CALL_TARGET = "hocket_host"
"""The function of `native/host.cpp`, as XLA knows it."""


class Caller(Protocol):
    """Whoever calls the host functions of a compiled program."""

    def __call__(self, of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]: ...

    def slot(self, of: HostFunction, ins: Specs, outs: Specs) -> int | None:
        """The number by which a program on the CPU calls a function; None: through Python."""
        ...


_caller = jax.make_user_context(None)  # a part of every key in jax's caches


def call_host(of: HostFunction, *arrays: Any) -> list[Any]:
    """Call a host function from a traced program."""
    return host_p.bind(*(jnp.asarray(x) for x in arrays), of=of)


def calling(caller: Caller) -> AbstractContextManager[None]:
    """Within, programs are lowered so that their host functions are called by `caller`."""
    return cast(AbstractContextManager[None], _caller(caller))


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


@dataclass(frozen=True)
class HostCall:
    """A fragment that is nothing but a call of a host function, taken apart."""

    of: HostFunction
    args: tuple[tuple[str, Any], ...]
    outs: tuple[tuple[str, Any], ...]

    def arguments(self, ins: Sequence[Any]) -> list[np.ndarray]:
        return [np.asarray(_value(source, ins, ())) for source in self.args]

    def shapes(self, ins: Sequence[Any]) -> list[tuple[int, ...]]:
        """Of the arguments, where `ins` may be anything that has a shape."""
        return [np.shape(_value(source, ins, ())) for source in self.args]

    def results(self, ins: Sequence[Any], made: Sequence[np.ndarray]) -> list[Any]:
        return [_value(source, ins, made) for source in self.outs]


def host_call(node: Node) -> HostCall | None:
    """The host function that a node only calls; None where it computes something as well."""
    return _read_call(node.eqn) if node.labels else None


def hosts(graph: Graph) -> list[HostFunction]:
    """The host functions of a graph that keep a state of their own, each once."""
    found = (of for node in graph.block.nodes for of in functions(node))
    return list(dict.fromkeys(of for of in found if of.keeps_state and of.service is None))


def functions(node: Node) -> list[HostFunction]:
    """The host functions that a node calls, at any depth."""
    return list(named_by(host_p, node.eqn))


def calls_host(block: Block) -> bool:
    """Whether some fragment of a block, or of a loop in it, is a call of a host function."""
    return any(
        calls_host(node.body) if isinstance(node, Loop) else host_call(node) is not None
        for node in block.nodes
    )


def _read_call(eqn: JaxprEqn) -> HostCall | None:
    if eqn.primitive.name != "jit":
        return None
    closed, numbers = eqn.params["jaxpr"], itertools.count()
    inner = closed.jaxpr
    known: dict[Any, tuple[str, Any]] = {}
    for outer, var in zip(eqn.invars, inner.invars, strict=True):
        is_literal = isinstance(outer, Literal)
        known[var] = ("literal", outer.val) if is_literal else ("in", next(numbers))
    known |= {v: ("literal", c) for v, c in zip(inner.constvars, closed.consts, strict=True)}

    def sources(variables: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        return tuple(("literal", v.val) if isinstance(v, Literal) else known[v] for v in variables)

    found: tuple[HostFunction, tuple[tuple[str, Any], ...]] | None = None
    for step in inner.eqns:
        if step.primitive.name == "optimization_barrier":
            known |= dict(zip(step.outvars, sources(step.invars), strict=True))
        elif step.primitive is host_p and found is None:
            found = step.params["of"], sources(step.invars)
            known |= {v: ("made", k) for k, v in enumerate(step.outvars)}
        else:
            return None
    return found and HostCall(*found, sources(inner.outvars))


def _value(source: tuple[str, Any], ins: Sequence[Any], made: Sequence[Any]) -> Any:
    kind, x = source
    return x if kind == "literal" else ins[x] if kind == "in" else made[x]


def _abstract(*avals: Any, of: HostFunction) -> list[Any]:
    specs = of.specs(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return [avals[0].update(shape=s.shape, dtype=s.dtype, weak_type=False) for s in specs]


def _lower_on_cpu(context: Any, *operands: Any, of: HostFunction) -> Any:
    caller: Caller | None = _caller.value
    slot = caller.slot(of, context.avals_in, context.avals_out) if caller else None
    if slot is None:
        return _lower(context, *operands, of=of)
    lowering = jax.ffi.ffi_lowering(CALL_TARGET, has_side_effect=of.keeps_state)
    return lowering(context, *operands, slot=np.int64(slot))


def _lower(context: Any, *operands: Any, of: HostFunction) -> Any:
    caller: Caller | None = _caller.value
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
mlir.register_lowering(host_p, _lower)
mlir.register_lowering(host_p, _lower_on_cpu, platform="cpu")
batching.primitive_batchers[host_p] = _batch
