"""The rules of the analysis: the kind of a primitive's output, given the kinds of its inputs.

The kind of a replica's value says how it relates to the value in one program for all environments.
The rules need not be complete, only right. A primitive without a rule makes a local value, which
may be wrong, unless all its inputs are the same on every replica (`_opaque`). So the worst that a
missing rule does is to refuse a program that would have been right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from hocket.core.analysis.indexing import (
    dynamic_slice,
    dynamic_update,
    gather,
    scatter,
    scatter_product,
)
from hocket.core.analysis.kinds import (
    UNIFORM,
    Kind,
    Site,
    join,
    local,
    moved,
    nonlinear,
    not_yet_averaged,
    product,
    summed,
)

Rule = Callable[[Sequence[Kind], Site], Kind]
AxisMap = Callable[[int, Site], int | None]
"""A function from an environment axis to the axis where a primitive puts it. It returns None if the
primitive mixes, reorders or leaves out environments."""


def apply_rule(kinds: Sequence[Kind], site: Site) -> list[Kind]:
    """Return the kinds of an equation's outputs, which say how replicas hold them.

    `kinds` are those of its inputs.
    """
    if site.name in ("optimization_barrier", "device_put"):
        return list(kinds)
    if site.name == "averaged":
        return [_fitting(_averaged(k, site), site, out) for out, k in enumerate(kinds)]
    kind = RULES.get(site.name, _opaque)(kinds, site)
    return [_fitting(kind, site, out) for out in range(len(site.outs))]


def _fitting(kind: Kind, site: Site, out: int) -> Kind:
    """Return `kind` if it agrees with the shapes of the output, else a local kind.

    The step is traced with two numbers of environments. The output's sizes in the two traces must
    differ along the environment axis of `kind`, and along no other axis. This checks every rule.
    """
    wanted = [kind.axis] if kind.tag == "per_env" else []
    if kind.tag == "local" or site.grown(out) == wanted:
        return kind
    return local(
        f"`{site.name}` at {site.where} makes an environment axis from a value that is the "
        f"same for all environments: make it in `init` and keep it in the state"
    )


def _moves(axis_map: AxisMap, combine: Rule = join) -> Rule:
    """Return the rule of a primitive that puts the environment axis where `axis_map` says.

    `combine` turns the kinds of all inputs into one kind. It is `join` for a linear primitive, and
    `nonlinear` for any other.
    """

    def rule(kinds: Sequence[Kind], site: Site) -> Kind:
        k = combine(kinds, site)
        return moved(k, site, axis_map(k.axis, site) if k.tag == "per_env" else None)

    return rule


def _removed(axis: int, gone: Sequence[int]) -> int | None:
    """Return the index of an axis after the axes `gone` are removed; None if it is removed, too."""
    return None if axis in gone else axis - sum(g < axis for g in gone)


def _unless(changed: Callable[[int, Site], bool]) -> AxisMap:
    """Return an axis map that leaves every axis where it is, but maps `changed` axes to None."""
    return lambda axis, site: None if changed(axis, site) else axis


def _works_along(*names: str) -> AxisMap:
    """Return the axis map of a primitive that mixes values along some axes and keeps the others.

    The primitive's parameters called `names` hold the axes along which it mixes.
    """
    return _unless(lambda axis, site: axis in [site.params[name] for name in names])


# Linear primitives: a mean over environments may pass through them before it is averaged.
_MOVES: dict[str, AxisMap] = {
    "transpose": lambda axis, site: site.params["permutation"].index(axis),
    "squeeze": lambda axis, site: _removed(axis, site.params["dimensions"]),
    "slice": _unless(lambda axis, site: site.resizes(axis)),
    "rev": _unless(lambda axis, site: axis in site.params["dimensions"]),
    "pad": _unless(lambda axis, site: any(site.params["padding_config"][axis])),
    "concatenate": _works_along("dimension"),
    "stack": lambda axis, site: axis + (site.params["axis"] <= axis),
    "unstack": lambda axis, site: _removed(axis, [site.params["axis"]]),
    "tile": _unless(lambda axis, site: site.params["reps"][axis] != 1),
    "split": _works_along("axis"),
    "cumsum": _works_along("axis"),
}
_REDUCE: AxisMap = lambda axis, site: _removed(axis, site.params["axes"])  # noqa: E731
_WINDOW = _unless(lambda axis, site: site.params["window_dimensions"][axis] != 1)
_BATCHED = _unless(lambda axis, site: axis >= len(site.ins[0].shape) - 2)  # matrix axes
_TOP = _unless(lambda axis, site: axis == site.params.get("axis", -1) % len(site.ins[0].shape))
# A maximum over environments is local, unlike their sum: no mean over replicas gives it back.
_NONLINEAR_MOVES: dict[str, AxisMap] = {
    "sort": _works_along("dimension"),
    "top_k": _TOP,
    **dict.fromkeys(("cholesky", "triangular_solve"), _BATCHED),
    **dict.fromkeys(["cumprod", "cummax", "cummin", "cumlogsumexp"], _works_along("axis")),
    **dict.fromkeys(("reduce_max", "reduce_min", "reduce_prod"), _REDUCE),
    **dict.fromkeys(("reduce_and", "reduce_or", "argmax", "argmin"), _REDUCE),
    **dict.fromkeys(("reduce_window_max", "reduce_window_sum"), _WINDOW),
}


def _divide(kinds: Sequence[Kind], site: Site) -> Kind:
    # Division of integers rounds, so it is not linear.
    return product(kinds, site, sign=-1) if site.floats else nonlinear(kinds, site)


def _compare(kinds: Sequence[Kind], site: Site) -> Kind:
    if any(k.zero for k in kinds):  # a sum has the sign of its mean, so its degree does not matter
        kinds = [replace(k, degree=0) for k in kinds]
    return nonlinear(kinds, site)


def _convert(kinds: Sequence[Kind], site: Site) -> Kind:
    if site.floats:
        return join(kinds, site)
    return replace(nonlinear(kinds, site), zero=all(k.zero for k in kinds))


def _power(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,) = kinds
    # The mean over replicas of squares is not the square of the mean: they differ by the variance
    # between replicas. So `nonlinear` makes the power of a partial value local.
    if k.tag in ("partial", "local"):
        return nonlinear(kinds, site)
    y = site.params.get("y", 2)
    return replace(k, degree=k.degree * y, zero=k.zero and y > 0)


def _select(kinds: Sequence[Kind], site: Site) -> Kind:
    which, *cases = kinds
    chosen = join(cases, site)
    if which.tag == "uniform":  # all replicas choose alike, so the cases may be partial
        return nonlinear([which], site) if which.degree else chosen
    if which.tag == "per_env" and chosen.tag in ("per_env", "uniform"):
        plain = [replace(k, degree=0, zero=False) for k in (which, chosen)]
        return replace(join(plain, site), degree=chosen.degree, zero=chosen.zero)
    return nonlinear(kinds, site)


def _broadcast(kinds: Sequence[Kind], site: Site) -> Kind:
    k, grown = kinds[0], site.grown()
    if k.tag == "local" or not grown:
        return k
    if k.tag == "partial":
        return not_yet_averaged(site)
    axis = site.params["broadcast_dimensions"][k.axis] if k.tag == "per_env" else grown[0]
    return replace(k, tag="per_env", axis=axis) if grown == [axis] else _two_axes(site)


def _two_axes(site: Site) -> Kind:
    return local(f"`{site.name}` at {site.where} has two axes that grow with the environments")


def _reshape(kinds: Sequence[Kind], site: Site) -> Kind:
    k = kinds[0]
    if k.tag != "per_env":
        return k
    grown, before, after = site.grown(), site.ins[0].shape, site.outs[0].shape
    if k.outer == 0 and len(grown) == 1 and math.prod(before) == before[k.axis]:
        return replace(k, axis=grown[0])
    # Memory is row-major: [outer rows][environments][rest]. Environments stay apart if one axis of
    # the new shape holds all environments and nothing else, or whole outer rows of them.
    rows = math.prod(before[: k.axis]) * max(k.outer, 1)
    if len(grown) == 1:
        outer, rest = divmod(rows, math.prod(after[: grown[0]]))
        if not rest and outer and all(shape[grown[0]] % outer == 0 for shape in site.outs[0]):
            return replace(k, axis=grown[0], outer=outer)
    return local(f"`reshape` at {site.where} mixes environments with another axis")


def _sum(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,) = kinds
    if k.tag == "per_env" and k.axis in site.params["axes"]:
        return summed(k)
    return moved(k, site, _REDUCE(k.axis, site))


def _dot(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of a matrix product.

    The result keeps the environment axis. If both sides have one and the product sums over both, as
    in a gradient, the result is partial: a sum over this replica's environments only.
    """
    contracted, batched = site.params["dimension_numbers"]
    free = [
        [i for i in range(len(site.ins[s].shape)) if i not in (*contracted[s], *batched[s])]
        for s in (0, 1)
    ]

    def goes(side: int, axis: int) -> int | None:
        """Return the result's axis that an operand's axis becomes; None if it is summed over."""
        if axis in contracted[side]:
            return None
        if axis in batched[side]:
            return list(batched[side]).index(axis)
        return len(batched[0]) + side * len(free[0]) + free[side].index(axis)

    at = [goes(side, k.axis) for side, k in enumerate(kinds) if k.tag == "per_env"]
    both = product([replace(k, axis=0) for k in kinds], site)
    if len(at) == 2 and at[0] != at[1]:
        return _two_axes(site)
    if not at or both.tag != "per_env":
        return both
    if at[0] is not None:
        return replace(both, axis=at[0])
    aligned = (kinds[0].axis, kinds[1].axis) in zip(*contracted, strict=True)
    return summed(both) if aligned else moved(both, site, None)


def _conv(kinds: Sequence[Kind], site: Site) -> Kind:
    x, w = kinds
    d = site.params["dimension_numbers"]
    both = product([replace(k, axis=0) for k in kinds], site)
    plain = site.params["feature_group_count"] == 1 == site.params["batch_group_count"]
    if both.tag != "per_env" or not plain:
        return moved(both, site, None)
    if w.tag == "uniform" and x.axis == d.lhs_spec[0]:
        return replace(both, axis=d.out_spec[0])
    if x.tag == w.tag and (x.axis, w.axis) == (d.lhs_spec[1], d.rhs_spec[1]):
        return summed(both)
    return moved(both, site, None)


def _iota(kinds: Sequence[Kind], site: Site) -> Kind:
    grown = site.grown()
    if site.params["dimension"] in grown:
        return local(
            f"`iota` at {site.where} numbers the environments (`arange(num_envs)`), and every "
            f"replica would make the same numbers: make them in `init` and keep them in the state"
        )
    return Kind("per_env", grown[0]) if grown else UNIFORM


def _random(kinds: Sequence[Kind], site: Site) -> Kind:
    k, grown = nonlinear(kinds, site), site.grown()
    if k.tag == "uniform" and grown:
        return local(
            f"`{site.name}` at {site.where} makes noise for all environments from one key, and "
            f"every replica would draw the same: keep one key per environment in the state"
        )
    return moved(k, site, k.axis if grown == [k.axis] else None)


def _averaged(k: Kind, site: Site) -> Kind:
    if k.tag == "local":
        return k
    if k.tag == "per_env":
        return local(
            f"`averaged` at {site.where} is given one value per environment: take their mean first"
        )
    if k.degree and not k.zero:
        return local(
            f"`averaged` at {site.where} is given a sum over environments, which depends on their "
            f"number: divide by it (a mean)"
        )
    return replace(k, tag="uniform", degree=0)


def _host(kinds: Sequence[Kind], site: Site) -> Kind:
    k = nonlinear(kinds, site)
    # A service need not keep environments apart, so its answer is treated as one value that all
    # environments share. `plan/checks_services.py` decides which places may call a service.
    return UNIFORM if site.params["of"].service and k.tag == "per_env" else k


def _opaque(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of an output of a primitive without a rule: local, with one exception.

    If every input is the same on all replicas, so is the output, because primitives are pure. In
    any other case the primitive might mix environments.
    """
    k = nonlinear(kinds, site)
    same = k.tag == "uniform" and not any(site.grown(i) for i in range(len(site.outs)))
    if same or k.tag == "local":
        return k
    return local(f"`{site.name}` at {site.where} is not known to keep environments apart")


_LINEAR = "neg copy real imag add sub add_any stop_gradient name zeros_like"
_NONLINEAR = """abs acos acosh and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp
    clz cos cosh digamma eq_to erf erf_inv erfc exp exp2 expm1 floor igamma igammac is_finite le_to
    lgamma log log1p logistic lt_to max min mulhi nextafter not or polygamma population_count pow
    random_clone random_fold_in reduce_precision rem round rsqrt shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt tan tanh xor log2 one_minus_square polynomial
    swappable"""
_RANDOM = "random_bits random_split random_wrap random_unwrap"

RULES: dict[str, Rule] = {
    **dict.fromkeys(_LINEAR.split(), join),
    **dict.fromkeys(_NONLINEAR.split(), nonlinear),
    **dict.fromkeys(["eq", "ge", "gt", "le", "lt", "ne"], _compare),
    **{name: _moves(axis_map) for name, axis_map in _MOVES.items()},
    **{name: _moves(axis_map, nonlinear) for name, axis_map in _NONLINEAR_MOVES.items()},
    **dict.fromkeys(("integer_pow", "square"), _power),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub"), scatter),
    "scatter-mul": scatter_product,
    **dict.fromkeys(_RANDOM.split(), _random),
    "mul": product,
    "div": _divide,
    "convert_element_type": _convert,
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update,
    "gather": gather,
    "reduce_sum": _sum,
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "iota": _iota,
    "host": _host,
}
