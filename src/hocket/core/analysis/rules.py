"""What each primitive makes of the kinds of its inputs.

Soundness is one sentence: an equation nobody has a rule for makes a local value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from hocket.core.analysis.kinds import (
    UNIFORM,
    ZERO,
    Kind,
    Site,
    join,
    local,
    meets,
    nonlinear,
    product,
    summed,
)

Rule = Callable[[Sequence[Kind], Site], Kind]
AxisMap = Callable[[int, Site], int | None]


def apply_rule(kinds: Sequence[Kind], site: Site) -> list[Kind]:
    """The kinds of an equation's outputs."""
    if site.name in ("optimization_barrier", "device_put"):
        return list(kinds)
    if site.name == "averaged":
        return [_fitting(_averaged(k, site), site, out) for out, k in enumerate(kinds)]
    kind = RULES.get(site.name, _opaque)(kinds, site)
    return [_fitting(kind, site, out) for out in range(len(site.outs))]


def _fitting(kind: Kind, site: Site, out: int) -> Kind:
    """`kind`, if the output grows with the environments as such a value must, else local."""
    wanted = [kind.axis] if kind.tag == "per_env" else []
    if kind.tag == "local" or site.grown(out) == wanted:
        return kind
    return local(
        f"`{site.name}` at {site.where} makes an environment axis from what is the same for all: "
        f"make it in `init` and keep it in the state"
    )


def _moved(k: Kind, site: Site, axis: int | None) -> Kind:
    """`k` with its environment axis at `axis`; None: the environments are no longer in order."""
    if k.tag != "per_env":
        return k
    if axis is None:
        return local(
            f"`{site.name}` at {site.where} picks among environments, reorders them or reduces "
            f"over them, and only a mean can be averaged over replicas"
        )
    return replace(k, axis=axis)


def _moves(axis_map: AxisMap, combine: Rule = join) -> Rule:
    """The rule of a primitive that treats all values along an axis alike, or moves axes about."""

    def rule(kinds: Sequence[Kind], site: Site) -> Kind:
        k = combine(kinds, site)
        return _moved(k, site, axis_map(k.axis, site) if k.tag == "per_env" else None)

    return rule


def _removed(axis: int, gone: Sequence[int]) -> int | None:
    """Where an axis is once others are gone; None if it is gone itself."""
    return None if axis in gone else axis - sum(g < axis for g in gone)


def _unless(changed: Callable[[int, Site], bool]) -> AxisMap:
    return lambda axis, site: None if changed(axis, site) else axis


def _resized(axis: int, site: Site) -> bool:
    """Whether an axis has another size after than before, at either number of environments."""
    return any(a[axis] != b[axis] for a, b in zip(site.ins[0], site.outs[0], strict=True))


def _works_along(*names: str) -> AxisMap:
    """Works along the axes that these parameters name, which must not be the environments'."""
    return _unless(lambda axis, site: axis in [site.params[name] for name in names])


_MOVES: dict[str, AxisMap] = {
    "transpose": lambda axis, site: site.params["permutation"].index(axis),
    "squeeze": lambda axis, site: _removed(axis, site.params["dimensions"]),
    "slice": _unless(_resized),
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
_BATCHED = _unless(lambda axis, site: axis >= len(site.ins[0].shape) - 2)  # over matrices
_TOP = _unless(lambda axis, site: axis == site.params.get("axis", -1) % len(site.ins[0].shape))
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
    if site.floats:
        return product(kinds, site, sign=-1)
    return nonlinear(kinds, site)  # whole numbers are rounded


def _compare(kinds: Sequence[Kind], site: Site) -> Kind:
    if any(k.zero for k in kinds):  # a sign does not depend on how many environments were summed
        kinds = [replace(k, degree=0) for k in kinds]
    return nonlinear(kinds, site)


def _convert(kinds: Sequence[Kind], site: Site) -> Kind:
    if site.floats:
        return join(kinds, site)
    return replace(nonlinear(kinds, site), zero=all(k.zero for k in kinds))


def _power(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,) = kinds
    if k.tag in ("partial", "local"):
        return nonlinear(kinds, site)
    y = site.params.get("y", 2)
    return replace(k, degree=k.degree * y, zero=k.zero and y > 0)


def _select(kinds: Sequence[Kind], site: Site) -> Kind:
    which, *cases = kinds
    chosen = join(cases, site)
    if which.tag == "uniform":
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
        return meets(site)
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
    # Row-major order: [outer rows][environments...]. As many rows must lie outside afterwards.
    rows = math.prod(before[: k.axis]) * max(k.outer, 1)
    if len(grown) == 1:
        outer, rest = divmod(rows, math.prod(after[: grown[0]]))
        if not rest and outer and all(shape[grown[0]] % outer == 0 for shape in site.outs[0]):
            return replace(k, axis=grown[0], outer=outer)
    return local(f"`reshape` at {site.where} mixes environments with another axis")


def _at_uniform(data: Sequence[Kind], index: Sequence[Kind], site: Site) -> Kind:
    """The kind of data that is read or written at indices, which must be uniform."""
    for k in index:
        if k.tag == "per_env":
            return local(f"`{site.name}` at {site.where} indexes with per-environment numbers")
        if k.tag != "uniform" or k.degree:
            return nonlinear([k], site)
    return join(data, site)


def _dynamic_slice(kinds: Sequence[Kind], site: Site) -> Kind:
    k = _at_uniform(kinds[:1], kinds[1:], site)
    return _moved(k, site, None if k.tag == "per_env" and _resized(k.axis, site) else k.axis)


def _dynamic_update(kinds: Sequence[Kind], site: Site) -> Kind:
    k = _at_uniform(kinds[:2], kinds[2:], site)
    part = k.tag == "per_env" and site.ins[0].shape[k.axis] != site.ins[1].shape[k.axis]
    return _moved(k, site, None if part else k.axis)


def _gather(kinds: Sequence[Kind], site: Site) -> Kind:
    data, index = kinds
    d, sizes = site.params["dimension_numbers"], site.params["slice_sizes"]
    batch = [i for i in range(len(site.outs[0].shape)) if i not in d.offset_dims]
    taken = (*d.collapsed_slice_dims, *d.operand_batching_dims)
    window = [i for i in range(len(sizes)) if i not in taken]
    if index.tag in ("local", "partial") or index.degree:
        return nonlinear([index], site)
    if "per_env" not in (index.tag, data.tag):
        return data
    if data.tag == "uniform":
        return replace(index, axis=batch[index.axis], degree=data.degree, zero=False)
    if data.tag == "per_env" and data.axis in d.operand_batching_dims:
        at = d.start_indices_batching_dims[d.operand_batching_dims.index(data.axis)]
        if index.tag == "uniform" or index.axis == at:
            both = [replace(data, axis=at), replace(index, degree=data.degree, zero=False)]
            return _moved(join(both, site), site, batch[at])
    elif data.tag == "per_env" and index.tag == "uniform" and data.axis in window:
        whole = site.ins[0].shape[data.axis] == sizes[data.axis]
        return _moved(data, site, d.offset_dims[window.index(data.axis)] if whole else None)
    return _moved(Kind("per_env"), site, None)


def _scatter(kinds: Sequence[Kind], site: Site) -> Kind:
    data, index, update = kinds
    d = site.params["dimension_numbers"]
    if index.tag in ("local", "partial") or index.degree:
        return nonlinear([index], site)
    if all(k.tag != "per_env" for k in kinds) or "local" in (data.tag, update.tag):
        return join([data, update], site)
    taken = (*d.inserted_window_dims, *d.operand_batching_dims)
    window = [i for i in range(len(site.ins[0].shape)) if i not in taken]
    batch = [i for i in range(len(site.ins[2].shape)) if i not in d.update_window_dims]
    if data.tag == "per_env" and data.axis in d.operand_batching_dims:
        at = d.scatter_indices_batching_dims[d.operand_batching_dims.index(data.axis)]
        if index.axis in (at, -1) and update.axis in (batch[at], -1):
            rows = replace(index, axis=data.axis, degree=data.degree, zero=data.zero)
            return join([data, replace(update, axis=data.axis), rows], site)
    elif data.tag == "per_env" and index.tag == "uniform" and data.axis in window:
        at = d.update_window_dims[window.index(data.axis)]
        if site.ins[2].shape[at] == site.ins[0].shape[data.axis] and update.axis in (at, -1):
            return join([data, replace(update, axis=data.axis)], site)
    elif data == ZERO and site.name in ("scatter-add", "scatter-sub") and update.axis in batch:
        return summed(replace(update, zero=False))  # over environments, into a table
    return local(
        f"`{site.name}` at {site.where} writes per-environment values into one array for all"
    )


def _scatter_product(kinds: Sequence[Kind], site: Site) -> Kind:
    data, _, update = kinds
    k = nonlinear([replace(data, axis=0, outer=0), replace(update, axis=0, outer=0)], site)
    return k if k.tag == "local" else _scatter(kinds, site)


def _sum(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,) = kinds
    if k.tag == "per_env" and k.axis in site.params["axes"]:
        return summed(k)
    return _moved(k, site, _REDUCE(k.axis, site))


def _dot(kinds: Sequence[Kind], site: Site) -> Kind:
    contracted, batched = site.params["dimension_numbers"]
    free = [
        [i for i in range(len(site.ins[s].shape)) if i not in (*contracted[s], *batched[s])]
        for s in (0, 1)
    ]

    def goes(side: int, axis: int) -> int | None:
        """Where an axis goes; None: it is summed over."""
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
    return summed(both) if aligned else _moved(both, site, None)


def _conv(kinds: Sequence[Kind], site: Site) -> Kind:
    x, w = kinds
    d = site.params["dimension_numbers"]
    both = product([replace(k, axis=0) for k in kinds], site)
    plain = site.params["feature_group_count"] == 1 == site.params["batch_group_count"]
    if both.tag != "per_env" or not plain:
        return _moved(both, site, None)
    if w.tag == "uniform" and x.axis == d.lhs_spec[0]:
        return replace(both, axis=d.out_spec[0])
    if x.tag == w.tag and (x.axis, w.axis) == (d.lhs_spec[1], d.rhs_spec[1]):
        return summed(both)
    return _moved(both, site, None)


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
    return _moved(k, site, k.axis if grown == [k.axis] else None)


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
    # What a service answers is the same for all; that it may be asked here is the plan's business.
    return UNIFORM if site.params["of"].service and k.tag == "per_env" else k


def _opaque(kinds: Sequence[Kind], site: Site) -> Kind:
    k = nonlinear(kinds, site)
    if k.tag == "local":
        return k
    if k.tag == "uniform" and not any(site.grown(i) for i in range(len(site.outs))):
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
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub"), _scatter),
    "scatter-mul": _scatter_product,
    **dict.fromkeys(_RANDOM.split(), _random),
    "mul": product,
    "div": _divide,
    "convert_element_type": _convert,
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    "reduce_sum": _sum,
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "iota": _iota,
    "host": _host,
}
