"""The kinds of an equation's outputs, found by walking two traces of one program together.

The traces differ in the number of environments, and should differ in nothing else. If an equation
has different parameters in the two traces, or a function has different equations, the results are
local: nothing is known about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from hocket.core.analysis.averages import uses_averaged
from hocket.core.analysis.kinds import UNIFORM, ZERO, Kind, ShapePair, Site, join, local, nonlinear
from hocket.core.analysis.rules import apply_rule
from hocket.core.graph.walk import scan_sizes, source_line
from hocket.errors import PlanError


class Walker:
    """A walk over two traces of a program together, which finds the kinds of its values.

    The second trace has `factor` times the environments of the first.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._walked: dict[Any, list[Kind]] = {}

    def literal(self, a: Any, b: Any) -> Kind:
        if not isinstance(a, Literal) or not isinstance(b, Literal):
            return local("a number of the program depends on the number of environments")
        return constant(a.val, b.val, self.factor)

    def equation(self, a: JaxprEqn, b: JaxprEqn, given: Iterable[Kind], within: str) -> list[Kind]:
        """Return the kinds of an equation's outputs, given those of its inputs.

        `given` has no kinds of literals, only those of variables. A literal's kind follows from its
        values in the two traces.
        """
        name = a.primitive.name
        sizes = [(len(e.invars), len(e.outvars)) for e in (a, b)]
        same = name == b.primitive.name and sizes[0] == sizes[1]
        if not (same and _same_settings(a, b)):
            why = f"`{name}` at {source_line(a, within)} changes with the number of environments"
            return [local(why)] * len(a.outvars)
        site, variables = site_of(a, b, within), iter(given)
        kinds = [
            self.literal(u, v) if isinstance(u, Literal) else next(variables)
            for u, v in zip(a.invars, b.invars, strict=True)
        ]
        if name == "scan":
            inner = partial(self.program, a.params["jaxpr"], b.params["jaxpr"], site.where)
            return scan_kinds(a.params, site, kinds, inner)
        if name == "while":
            return self._while(a, b, kinds, site)
        if name == "cond":
            return self._cond(a, b, kinds, site)
        if name in _CALLS:
            return self.program(a.params[_CALLS[name]], b.params[_CALLS[name]], site.where, kinds)
        return apply_rule(kinds, site)

    def program(self, a: Any, b: Any, within: str, kinds: Sequence[Kind]) -> list[Kind]:
        """Return the kinds of a program's outputs, given those of its inputs."""
        # A physics engine is thousands of calls of a few functions, in loops that are walked until
        # their kinds settle. So the result of a walk is kept for the next call with equal kinds.
        key = id(a), id(b), *kinds
        if key not in self._walked:
            self._walked[key] = self._program(a, b, within, kinds)
        return self._walked[key]

    def _program(self, a: Any, b: Any, within: str, kinds: Sequence[Kind]) -> list[Kind]:
        x, y = (j.jaxpr if isinstance(j, ClosedJaxpr) else j for j in (a, b))
        consts = [j.consts if isinstance(j, ClosedJaxpr) else [] for j in (a, b)]
        if any(len(p) != len(q) for p, q in ((x.eqns, y.eqns), consts)):
            why = "the program has different equations with a different number of environments"
            return [local(why)] * len(x.outvars)
        known = dict(zip(x.invars, kinds, strict=True))
        for v, c, d in zip(x.constvars, *consts, strict=True):
            known[v] = constant(c, d, self.factor)
        for e, f in zip(x.eqns, y.eqns, strict=True):
            given = [known[v] for v in e.invars if not isinstance(v, Literal)]
            outs = self.equation(e, f, given, within)
            known |= dict(zip(e.outvars, outs, strict=True))
        return [
            self.literal(u, v) if isinstance(u, Literal) else known[u]
            for u, v in zip(x.outvars, y.outvars, strict=True)
        ]

    def _while(self, a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], site: Site) -> list[Kind]:
        nc, nb = a.params["cond_nconsts"], a.params["body_nconsts"]
        cond, body = (
            partial(self.program, a.params[name], b.params[name], site.where)
            for name in ("cond_jaxpr", "body_jaxpr")
        )
        carry, _ = _settled(
            lambda carry: body([*kinds[nc : nc + nb], *carry]), kinds[nc + nb :], site
        )
        (predicate,) = cond([*kinds[:nc], *carry])
        return _under(predicate, a, site, carry)

    def _cond(self, a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], site: Site) -> list[Kind]:
        predicate, *operands = kinds
        branches = [
            self.program(x, y, site.where, operands)
            for x, y in zip(a.params["branches"], b.params["branches"], strict=True)
        ]
        return _under(predicate, a, site, [join(ks, site) for ks in zip(*branches, strict=True)])


# Primitives that only call a program -> the parameter that holds the program.
_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}


def site_of(a: JaxprEqn, b: JaxprEqn, within: str = "") -> Site:
    """Return what the rules need to know about an equation: `a` in one trace, `b` in the other."""

    def shapes(us: Sequence[Any], vs: Sequence[Any]) -> list[ShapePair]:
        return [
            ShapePair(tuple(u.aval.shape), tuple(v.aval.shape)) for u, v in zip(us, vs, strict=True)
        ]

    values: list[Any] = [*a.invars, *a.outvars]
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in values)
    ins, outs = shapes(a.invars, b.invars), shapes(a.outvars, b.outvars)
    return Site(a.primitive.name, a.params, ins, outs, source_line(a, within), floats)


def scan_kinds(
    params: dict[str, Any],
    site: Site,
    kinds: Sequence[Kind],
    body: Callable[[Sequence[Kind]], list[Kind]],
) -> list[Kind]:
    """Return the kinds of a `scan`'s outputs.

    `body` returns the kinds of one pass's outputs, given those of its inputs.
    """
    nc, nk = scan_sizes(params)
    rows = [_first_axis(k, -1, site) for k in kinds[nc + nk :]]
    carry, outs = _settled(
        lambda carry: body([*kinds[:nc], *carry, *rows]), kinds[nc : nc + nk], site
    )
    return [*carry, *(_first_axis(k, +1, site) for k in outs[nk:])]


def _settled(
    body: Callable[[Sequence[Kind]], list[Kind]], carry: Sequence[Kind], site: Site
) -> tuple[Sequence[Kind], list[Kind]]:
    """Walk a loop's body until the kinds of the carried values no longer change.

    The kind of a carried value must hold in every pass of the loop. So after each walk, its kinds
    before and after the body are joined, and the next walk begins with the result. This ends
    because `join` moves a kind only forward: from zero to uniform, to per-environment or partial,
    to local. Return the kinds of the carried values, and those of the body's outputs.
    """
    while True:
        outs = body(carry)
        after = [join([k, out], site) for k, out in zip(carry, outs, strict=False)]
        if after == list(carry):
            return carry, outs
        carry = after


def _first_axis(kind: Kind, by: int, site: Site) -> Kind:
    """Return a value's kind after `scan` removed its first axis (`by=-1`) or added one (`by=1`)."""
    if kind.tag != "per_env":
        return kind
    if kind.axis + by < 0:
        return local(f"`scan` at {site.where} goes through the environments one by one")
    return Kind("per_env", kind.axis + by, kind.outer, kind.degree, kind.zero)


def _under(predicate: Kind, eqn: JaxprEqn, site: Site, results: Sequence[Kind]) -> list[Kind]:
    """Return the kinds of the outputs of a `cond` or `while`, given the kind of its predicate.

    `results` are the kinds of these outputs if the predicate is the same on every replica.
    """
    if predicate.tag == "uniform" and not predicate.degree:
        return list(results)
    # Some replicas would call `averaged` and wait for others that never call it.
    if uses_averaged(eqn):
        raise PlanError(
            f"`averaged` is inside a `{site.name}` at {site.where} whose predicate is not the same "
            f"on every replica, so some replicas would wait for the others forever. Average the "
            f"predicate, or move `averaged` out. Reason: "
            f"{predicate.why or f'the predicate is {predicate.tag}'}."
        )
    # Under `vmap`, a `while` goes on until all environments are done, and one that is done keeps
    # its values until then. So each ends with the values that it would have alone.
    if predicate.tag == "per_env":
        return [nonlinear([k, predicate], site) for k in results]
    why = (
        predicate.why
        or f"`{site.name}` at {site.where} has a predicate that differs between replicas"
    )
    return [local(why)] * len(results)


def constant(a: Any, b: Any, factor: float) -> Kind:
    """Return the kind of a program's constant, whose values in the two traces are `a` and `b`."""
    if np.shape(a) != np.shape(b):
        return local(
            "a constant has an environment axis, and every replica would have the same one: make "
            "it in `init` and keep it in the state"
        )
    scalar = np.ndim(a) == 0 and not jnp.issubdtype(jnp.asarray(a).dtype, jax.dtypes.prng_key)
    both_nan = scalar and a != a and b != b
    if a is b or np.array_equal(a, b) or both_nan:
        return ZERO if scalar and a == 0 else UNIFORM
    degree = _degree(float(a), float(b), factor) if scalar else None
    if degree is None:
        return local("a constant of the program depends on the number of environments")
    return Kind("uniform", degree=degree)


def _degree(a: float, b: float, factor: float) -> int | None:
    """Return the exponent in `b == a * factor ** exponent`; None if there is none.

    `a` and `b` are the values of one constant in the two traces. The second trace has `factor`
    times the environments, so the constant `x.shape[0]` has the exponent 1.
    """
    for degree in (1, -1, 2, -2):
        if a and math.isclose(b / a, factor**degree, rel_tol=1e-6):
            return degree
    return None


def _same_settings(a: JaxprEqn, b: JaxprEqn) -> bool:
    """Return True if an equation has the same parameters in both traces.

    Axis sizes among the parameters may differ, as they do in its inputs and outputs.
    """
    pairs: list[Any] = [*zip(a.invars, b.invars), *zip(a.outvars, b.outvars)]  # noqa: B905
    sizes = {size for u, v in pairs for size in zip(u.aval.shape, v.aval.shape, strict=False)}
    return all(_same(v, b.params.get(k), sizes) for k, v in a.params.items())


def _same(a: Any, b: Any, sizes: set[tuple[int, int]]) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        inner = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, _PLAIN)]
        return len(a) == len(b) and all((x, y) in sizes or _same(x, y, sizes) for x, y in inner)
    # A value of another type, such as an inner program, is compared where it is walked.
    return not isinstance(a, _PLAIN) or a == b or (a != a and b != b)


_PLAIN = (int, float, str, tuple)
