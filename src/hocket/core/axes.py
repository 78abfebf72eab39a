"""Which axis of a value is the environments', and what each value on a replicated place is.

Nobody annotates anything. A step is traced at `num_envs` and at twice that; the environment axis of
a value is the one whose size is the number of environments both times. For a replicated place the
two programs are walked together, equation by equation, with the rules of `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxprs_in_params

from hocket.core.graph import Block, Graph, Loop, Node, same_constant, scan_sizes, source_line
from hocket.core.kinds import UNIFORM, ZERO, Kind, Site, join, local
from hocket.core.rules import apply_rule
from hocket.errors import PlanError


class Axes:
    """The environment axes of a graph's values, and their kinds on a replicated place."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.twin = graph.at(2 * graph.num_envs)

    def grown(self, value: int) -> list[int]:
        """The axes of a value that grow with the number of environments."""
        pair = zip(self.graph.values[value].shape, self.twin.values[value].shape, strict=True)
        return [i for i, (a, b) in enumerate(pair) if a != b]

    def axis(self, value: int) -> int | None:
        """The environment axis of a value; None where it has none, or not exactly one."""
        grown, shape = self.grown(value), self.graph.values[value].shape
        return grown[0] if len(grown) == 1 and shape[grown[0]] == self.graph.num_envs else None

    def from_outside(self, value: int) -> Kind:
        """The kind of a value that comes to a replicated place: split, or the same for all."""
        axis = self.axis(value)
        if axis is not None:
            return Kind("per_env", axis, outer=1)
        return UNIFORM if not self.grown(value) else local("it has no environment axis of its own")

    def on_place(self, inside: Callable[[Node], bool]) -> dict[int, Kind]:
        """The kind of every value that the nodes chosen by `inside` read or make."""
        kinds: dict[int, Kind] = {}
        state = self.graph.block.inputs
        for v in state:
            kinds[v] = self.from_outside(v)
        self._block(self.graph.block, self.twin.block, inside, kinds)
        return kinds

    def _block(
        self, a: Block, b: Block, inside: Callable[[Node], bool], kinds: dict[int, Kind]
    ) -> None:
        for n, m in zip(a.nodes, b.nodes, strict=True):
            for v in n.ins:
                kinds.setdefault(v, self._arriving(v))
            if inside(n):
                self._node(n, m, kinds)
            elif isinstance(n, Loop) and isinstance(m, Loop):
                self._loop(n, m, inside, kinds)

    def _arriving(self, value: int) -> Kind:
        if value in self.graph.constants:
            return _constant(self.graph.constants[value], self.twin.constants[value])
        return self.from_outside(value)

    def _node(self, n: Node, m: Node, kinds: dict[int, Kind]) -> None:
        given = iter(n.ins)
        operands = [
            _literal(u, v) if isinstance(u, Literal) else kinds[next(given)]
            for u, v in zip(n.eqn.invars, m.eqn.invars, strict=True)
        ]
        kinds |= dict(zip(n.outs, _equation(n.eqn, m.eqn, operands, n.where), strict=True))

    def _loop(
        self, n: Loop, m: Loop, inside: Callable[[Node], bool], kinds: dict[int, Kind]
    ) -> None:
        """This place's part of a loop that crosses places, until the carry's kinds settle."""
        outs = n.body.outputs

        def body(given: Sequence[Kind]) -> list[Kind]:
            for v in _made(n.body):
                kinds.pop(v, None)
            kinds.update(zip(n.body.inputs, given, strict=True))
            self._block(n.body, m.body, inside, kinds)
            return [kinds.get(v) or self._arriving(v) for v in outs]

        site = _site(n.eqn, m.eqn)
        results = _scan_kinds(n.eqn.params, site, [kinds[v] for v in n.ins], body)
        for v, kind in zip(n.outs, results, strict=True):
            kinds[v] = kind


def check_kind(axes: Axes, value: int, kind: Kind, what: str, place: str) -> None:
    """Refuse a value that leaves a replicated place, or stays in its state, and is not fit to."""
    uneven = axes.grown(value) and axes.axis(value) is None
    if kind.tag == "local" and not uneven:
        reason = kind.why
    elif uneven:
        shape = list(axes.graph.values[value].shape)
        reason = (
            f"its shape {shape} grows with the environments but no axis is theirs alone, so it "
            f"cannot be split by environment: keep time and environments as two axes"
        )
    elif kind.tag == "partial":
        reason = (
            "it is reduced over this replica's environments: return it per environment, or wrap "
            "the mean in `averaged(...)`"
        )
    elif kind.degree and not kind.zero:
        reason = "it depends on the number of environments, which is another one in a replica"
    elif kind.tag == "per_env" and kind.outer > 1:
        reason = "its environments do not lie in their order"
    else:
        return
    raise PlanError(f"the place `{place}` cannot run as replicas: {what}: {reason}.")


def uses_averaged(node: Node) -> bool:
    return _contains_averaged(node.eqn)


def _made(block: Block) -> Iterator[int]:
    for node in block.nodes:
        yield from node.outs
        if isinstance(node, Loop):
            yield from node.body.inputs
            yield from _made(node.body)


def _literal(a: Any, b: Any) -> Kind:
    """The kind of a number: its degree is how it changed when the environments doubled."""
    if not isinstance(a, Literal) or not isinstance(b, Literal):
        return local("a number of the program depends on the number of environments")
    return _constant(a.val, b.val)


def _constant(a: Any, b: Any) -> Kind:
    if np.shape(a) != np.shape(b):
        return local(
            "a constant has an environment axis, and every replica would have the same one: make "
            "it in `init` and keep it in the state"
        )
    if same_constant(a, b) or (np.ndim(a) == 0 and a != a and b != b):
        return (
            ZERO
            if np.ndim(a) == 0 and jnp.issubdtype(np.asarray(a).dtype, np.number) and a == 0
            else UNIFORM
        )
    ratio = (
        np.log2(float(b) / float(a))
        if np.ndim(a) == 0 and float(a) and float(b) / float(a) > 0
        else 0.5
    )
    if ratio == round(ratio):
        return Kind("uniform", degree=int(ratio))
    return local("a constant of the program depends on the number of environments")


def _site(a: JaxprEqn, b: JaxprEqn, within: str = "") -> Site:
    def shapes(us: Sequence[Any], vs: Sequence[Any]) -> list[tuple[Any, Any]]:
        return [(tuple(u.aval.shape), tuple(v.aval.shape)) for u, v in zip(us, vs, strict=True)]

    values: list[Any] = [*a.invars, *a.outvars]
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in values)
    where = source_line(a, within)
    return Site(
        a.primitive.name,
        a.params,
        shapes(a.invars, b.invars),
        shapes(a.outvars, b.outvars),
        where,
        floats,
    )


def _equation(a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], within: str) -> list[Kind]:
    site, name = _site(a, b, within), a.primitive.name
    if name != b.primitive.name or not _same_settings(a.params, b.params):
        why = f"`{name}` at {site.where} is another one with another number of environments"
        return [local(why)] * len(site.outs)
    if name == "scan":
        inner = _closed(a.params["jaxpr"], b.params["jaxpr"], site.where)
        return _scan_kinds(a.params, site, kinds, inner)
    if name == "while":
        return _while_kinds(a, b, kinds, site)
    if name == "cond":
        return _cond_kinds(a, b, kinds, site)
    if name in _CALLS:
        return _closed(a.params[_CALLS[name]], b.params[_CALLS[name]], site.where)(kinds)
    return apply_rule(kinds, site)


def _same_settings(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether the parameters agree that are plain numbers or words; shapes may differ."""
    plain = {k: v for k, v in a.items() if isinstance(v, int | float | str)}
    return all(v == b.get(k) or (v != v and b[k] != b[k]) for k, v in plain.items())


# Calls that only wrap a program, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}


def _closed(a: Any, b: Any, within: str) -> Callable[[Sequence[Kind]], list[Kind]]:
    """Walk two traces of a program together."""

    def walk(kinds: Sequence[Kind]) -> list[Kind]:
        x, y = (j.jaxpr if isinstance(j, ClosedJaxpr) else j for j in (a, b))
        consts = zip(a.consts, b.consts, strict=True) if isinstance(a, ClosedJaxpr) else ()
        known = dict(zip(x.invars, kinds, strict=True))
        known |= {v: _constant(c, d) for v, (c, d) in zip(x.constvars, consts, strict=True)}
        if len(x.eqns) != len(y.eqns):
            why = "the program has other equations with another number of environments"
            return [local(why)] * len(x.outvars)
        for e, f in zip(x.eqns, y.eqns, strict=True):
            operands = [
                _literal(u, v) if isinstance(u, Literal) else known[u]
                for u, v in zip(e.invars, f.invars, strict=True)
            ]
            known |= dict(zip(e.outvars, _equation(e, f, operands, within), strict=True))
        return [
            _literal(u, v) if isinstance(u, Literal) else known[u]
            for u, v in zip(x.outvars, y.outvars, strict=True)
        ]

    return walk


def _scan_kinds(
    params: dict[str, Any],
    site: Site,
    kinds: Sequence[Kind],
    body: Callable[[Sequence[Kind]], list[Kind]],
) -> list[Kind]:
    nc, nk = scan_sizes(params)
    consts, carry, xs = list(kinds[:nc]), list(kinds[nc : nc + nk]), kinds[nc + nk :]
    slices = [_first_axis(k, -1, site) for k in xs]
    while True:
        outs = body([*consts, *carry, *slices])
        after = [join([k, o], site) for k, o in zip(carry, outs[:nk], strict=True)]
        if after == carry:
            return [*carry, *(_first_axis(k, +1, site) for k in outs[nk:])]
        carry = after


def _first_axis(kind: Kind, by: int, site: Site) -> Kind:
    if kind.tag != "per_env":
        return kind
    if kind.axis + by < 0:
        return local(f"`scan` at {site.where} goes through the environments one by one")
    return Kind("per_env", kind.axis + by, kind.outer, kind.degree, kind.zero)


def _while_kinds(a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], site: Site) -> list[Kind]:
    nc, nb = a.params["cond_nconsts"], a.params["body_nconsts"]
    cond = _closed(a.params["cond_jaxpr"], b.params["cond_jaxpr"], site.where)
    body = _closed(a.params["body_jaxpr"], b.params["body_jaxpr"], site.where)
    cond_consts, body_consts, carry = kinds[:nc], kinds[nc : nc + nb], list(kinds[nc + nb :])
    while True:
        after = [
            join([k, o], site) for k, o in zip(carry, body([*body_consts, *carry]), strict=True)
        ]
        if after == carry:
            (predicate,) = cond([*cond_consts, *carry])
            return _under(predicate, a, site, carry)
        carry = after


def _cond_kinds(a: JaxprEqn, b: JaxprEqn, kinds: Sequence[Kind], site: Site) -> list[Kind]:
    predicate, *operands = kinds
    branches = [
        _closed(x, y, site.where)(operands)
        for x, y in zip(a.params["branches"], b.params["branches"], strict=True)
    ]
    return _under(predicate, a, site, [join(ks, site) for ks in zip(*branches, strict=True)])


def _under(predicate: Kind, eqn: JaxprEqn, site: Site, results: list[Kind]) -> list[Kind]:
    """What a branch or loop makes, where the predicate may differ between replicas."""
    if predicate.tag == "uniform" and not predicate.degree:
        return results
    if _contains_averaged(eqn):
        raise PlanError(
            f"`averaged` stands under a `{site.name}` at {site.where} whose predicate is not the "
            f"same on every replica, so they would wait for each other for ever. Average the "
            f"predicate, or take `averaged` out. ({predicate.why or 'it is ' + predicate.tag})"
        )
    why = (
        predicate.why
        or f"`{site.name}` at {site.where} has a predicate that differs between replicas"
    )
    return [local(why)] * len(results)


def _contains_averaged(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "averaged" or any(
        _contains_averaged(e) for jaxpr in jaxprs_in_params(eqn.params) for e in _eqns(jaxpr)
    )


def _eqns(jaxpr: Jaxpr | ClosedJaxpr) -> Sequence[JaxprEqn]:
    return jaxpr.eqns
