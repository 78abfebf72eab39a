"""What a value on a replicated place is, and what each primitive makes of it.

With `r` replicas each holds `num_envs / r` environments. A value there is

- *per-environment*: it has an environment axis, and replica `i` holds the `i`-th share of it;
- *uniform*: the same on every replica;
- *partial*: reduced over the replica's environments and not yet averaged: only linear equations may
  follow, into `averaged`;
- *local*: anything else. It differs from the fused program's value, so it must not matter.

Soundness is one sentence: an equation nobody has a rule for makes a local value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Tag = Literal["uniform", "per_env", "partial", "local"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    tag: Tag
    axis: int = -1
    outer: int = 0
    """The axis is laid out as [outer][environments...]; 0: constant along the axis, so any layout."""
    degree: int = 0
    """The value grows with the number of environments to this power (a sum: 1, a mean: 0)."""
    zero: bool = False
    """Known to be zero, and so of any degree."""
    why: str = ""
    """For a local value: what made it so."""


UNIFORM = Kind("uniform")
ZERO = Kind("uniform", zero=True)


def local(why: str) -> Kind:
    return Kind("local", why=why)


@dataclass(frozen=True)
class Site:
    """An equation as the rules see it: its parameters, and its shapes at both sizes."""

    name: str
    params: dict[str, Any]
    ins: Sequence[tuple[Shape, Shape]]
    outs: Sequence[tuple[Shape, Shape]]
    where: str
    floats: bool
    """Whether inputs and outputs are all floating point: a conversion of them is linear."""

    def grown(self, out: int = 0) -> list[int]:
        """The axes of an output that grow with the number of environments."""
        small, large = self.outs[out]
        return [i for i, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]

    def full(self, operand: int, sizes: Sequence[int], axis: int) -> bool:
        return self.ins[operand][0][axis] == sizes[axis]


MEETS = (
    "{op} at {where} lets a mean over this replica's environments meet other values before it is "
    "averaged: wrap the mean in `averaged(...)`"
)


def join(kinds: Sequence[Kind], site: Site) -> Kind:
    """The kind of a sum of such values, or of a choice between them."""
    known = [k for k in kinds if not k.zero]
    axes = {(k.axis, k.outer) for k in kinds if k.tag == "per_env" and k.outer}
    grown = [k.axis for k in kinds if k.tag == "per_env"]
    for k in known:
        if k.tag == "local":
            return k
    tags = {k.tag for k in known}
    if "partial" in tags and grown:
        return local(MEETS.format(op=f"`{site.name}`", where=site.where))
    if len({k.degree for k in known}) > 1:
        return local(f"`{site.name}` at {site.where} adds a sum over environments to something else")
    if len(axes) > 1 or len(set(grown)) > 1:
        return local(f"`{site.name}` at {site.where} combines values whose environments lie differently")
    degree, zero = (known[0].degree if known else 0), not known
    if grown:
        axis, outer = axes.pop() if axes else (grown[0], 0)
        return Kind("per_env", axis, outer, degree, zero)
    return Kind("partial" if "partial" in tags else "uniform", degree=degree, zero=zero)


def _product(kinds: Sequence[Kind], site: Site, sign: int = 1) -> Kind:
    """The kind of a product (or with `sign=-1` a quotient) of two values."""
    a, b = kinds
    if "local" in (a.tag, b.tag):
        return a if a.tag == "local" else b
    if b.tag == "partial" and (sign < 0 or a.tag != "uniform") or (
        a.tag == "partial" and b.tag != "uniform"
    ):
        return local(MEETS.format(op=f"`{site.name}`", where=site.where))
    both = join([replace(k, degree=0, zero=False) for k in kinds], site)
    if both.tag == "local":
        return both
    zero = a.zero or (b.zero and sign > 0)
    return replace(both, degree=a.degree + sign * b.degree, zero=zero)


def _nonlinear(kinds: Sequence[Kind], site: Site) -> Kind:
    for k in kinds:
        if k.tag == "local":
            return k
    if any(k.tag == "partial" for k in kinds):
        return local(MEETS.format(op=f"`{site.name}`", where=site.where))
    if any(k.degree for k in kinds):
        return local(
            f"`{site.name}` at {site.where} depends on the number of environments, which is "
            f"another one in a replica"
        )
    return join([replace(k, zero=False) for k in kinds], site)


def _convert(kinds: Sequence[Kind], site: Site) -> Kind:
    return join(kinds, site) if site.floats else _keep_zero(_nonlinear)(kinds, site)


def _keep_zero(rule: Rule) -> Rule:
    def kept(kinds: Sequence[Kind], site: Site) -> Kind:
        return replace(rule(kinds, site), zero=all(k.zero for k in kinds))

    return kept


def _power(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,) = kinds
    if k.tag in ("partial", "local"):
        return _nonlinear(kinds, site)
    return replace(k, degree=k.degree * site.params.get("y", 2))


def _select(kinds: Sequence[Kind], site: Site) -> Kind:
    which, *cases = kinds
    chosen = join(cases, site)
    if which.tag == "uniform":
        return _nonlinear([which], site) if which.degree else chosen
    if which.tag == "per_env" and chosen.tag in ("per_env", "uniform"):
        axis = join([replace(which, degree=0, zero=False), replace(chosen, degree=0)], site)
        return axis if axis.tag == "local" else replace(axis, degree=chosen.degree, zero=chosen.zero)
    return _nonlinear(kinds, site)


# Structure: where does the environment axis go? Each returns the new axis, or None if it is lost.


def _moved(kinds: Sequence[Kind], site: Site, axis: int | None, operand: int = 0) -> Kind:
    k = kinds[operand]
    if k.tag != "per_env":
        return k
    if axis is None:
        return local(f"`{site.name}` at {site.where} picks among environments or reorders them")
    return replace(k, axis=axis)


def _broadcast(kinds: Sequence[Kind], site: Site) -> Kind:
    k, grown = kinds[0], site.grown()
    if k.tag == "local" or not grown:
        return k
    if k.tag == "per_env":
        axis = site.params["broadcast_dimensions"][k.axis]
        return replace(k, axis=axis) if grown == [axis] else local(
            f"`{site.name}` at {site.where} has two axes that grow with the environments"
        )
    if k.tag == "partial":
        return local(MEETS.format(op=f"`{site.name}`", where=site.where))
    return replace(k, tag="per_env", axis=grown[0]) if len(grown) == 1 else local(
        f"`{site.name}` at {site.where} has two axes that grow with the environments"
    )


def _reshape(kinds: Sequence[Kind], site: Site) -> Kind:
    k = kinds[0]
    if k.tag != "per_env":
        return k
    grown, (before, _), (after, _) = site.grown(), site.ins[0], site.outs[0]
    if k.outer == 0 and len(grown) == 1 and math.prod(before) == before[k.axis]:
        return replace(k, axis=grown[0])
    # Row-major order: [outer rows][environments...]. The same number of rows must lie outside after.
    rows = math.prod(before[: k.axis]) * max(k.outer, 1)
    if len(grown) == 1:
        outer, rest = divmod(rows, math.prod(after[: grown[0]]))
        if not rest and outer and all(shape[grown[0]] % outer == 0 for shape in site.outs[0]):
            return replace(k, axis=grown[0], outer=outer)
    return local(f"`reshape` at {site.where} mixes environments with another axis")


def _transpose(kinds: Sequence[Kind], site: Site) -> Kind:
    axis = kinds[0].axis
    order = site.params["permutation"]
    return _moved(kinds, site, order.index(axis) if kinds[0].tag == "per_env" else None)


def _squeeze(kinds: Sequence[Kind], site: Site) -> Kind:
    axis = kinds[0].axis
    return _moved(kinds, site, axis - sum(d < axis for d in site.params["dimensions"]))


def _stack(kinds: Sequence[Kind], site: Site) -> Kind:
    k = join(kinds, site)
    return _moved([k], site, k.axis + (site.params["axis"] <= k.axis))


def _unstack(kinds: Sequence[Kind], site: Site) -> Kind:
    k, axis = kinds[0], site.params["axis"]
    return _moved(kinds, site, None if axis == k.axis else k.axis - (axis < k.axis))


def _tile(kinds: Sequence[Kind], site: Site) -> Kind:
    k = kinds[0]
    return _moved(kinds, site, None if k.tag == "per_env" and site.params["reps"][k.axis] != 1 else k.axis)


def _slice(kinds: Sequence[Kind], site: Site) -> Kind:
    axis = kinds[0].axis
    whole = site.outs[0][0][axis] == site.ins[0][0][axis] and site.outs[0][1][axis] == site.ins[0][1][axis]
    return _moved(kinds, site, axis if whole else None)


def _reverse(kinds: Sequence[Kind], site: Site) -> Kind:
    axis = kinds[0].axis
    return _moved(kinds, site, None if axis in site.params["dimensions"] else axis)


def _pad(kinds: Sequence[Kind], site: Site) -> Kind:
    x, filler = kinds
    k = _moved(kinds, site, None if x.tag == "per_env" and any(site.params["padding_config"][x.axis]) else x.axis)
    return join([k, filler], site)


def _concatenate(kinds: Sequence[Kind], site: Site) -> Kind:
    k = join(kinds, site)
    return _moved([k], site, None if k.axis == site.params["dimension"] else k.axis)


def _indexed(kinds: Sequence[Kind], site: Site, data: Sequence[Kind], index: Sequence[Kind]) -> Kind:
    """A slice or update at uniform indices, which leaves the environment axis whole."""
    for k in index:
        if k.tag != "uniform" or k.degree:
            return _nonlinear([k], site) if k.tag != "per_env" else local(
                f"`{site.name}` at {site.where} indexes with per-environment numbers"
            )
    return join(data, site)


def _dynamic_slice(kinds: Sequence[Kind], site: Site) -> Kind:
    k = _indexed(kinds, site, kinds[:1], kinds[1:])
    return _slice([k], site)


def _dynamic_update(kinds: Sequence[Kind], site: Site) -> Kind:
    operand, update, *index = kinds
    k = _indexed(kinds, site, [operand, update], index)
    whole = k.tag != "per_env" or site.ins[0][0][k.axis] == site.ins[1][0][k.axis]
    return _moved([k], site, k.axis if whole else None)


def _gather(kinds: Sequence[Kind], site: Site) -> Kind:
    data, index = kinds
    d, sizes = site.params["dimension_numbers"], site.params["slice_sizes"]
    rank = len(site.outs[0][0])
    batch = [i for i in range(rank) if i not in d.offset_dims]
    if index.tag in ("local", "partial") or index.degree:
        return _nonlinear([index], site)
    if data.tag == "per_env" and data.axis in d.operand_batching_dims:
        at = d.start_indices_batching_dims[d.operand_batching_dims.index(data.axis)]
        if index.tag != "per_env" or index.axis == at:
            joined = join([replace(data, axis=at), replace(index, degree=data.degree, zero=False)], site)
            return _moved([joined], site, batch[at])
    elif index.tag == "per_env" and data.tag == "uniform":
        return replace(data, tag="per_env", axis=batch[index.axis], outer=index.outer, zero=False)
    elif index.tag == "uniform" and data.tag == "per_env":
        kept = [i for i in range(len(sizes)) if i not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
        if data.axis in kept and site.full(0, sizes, data.axis):
            return replace(data, axis=d.offset_dims[kept.index(data.axis)])
    elif "per_env" not in (index.tag, data.tag):
        return data
    return _moved([Kind("per_env")], site, None)


def _scatter(kinds: Sequence[Kind], site: Site) -> Kind:
    data, index, update = kinds
    d = site.params["dimension_numbers"]
    adds = site.name != "scatter"
    if index.tag in ("local", "partial") or index.degree:
        return _nonlinear([index], site)
    if "local" in (data.tag, update.tag):
        return data if data.tag == "local" else update
    grown = [k for k in kinds if k.tag == "per_env"]
    if not grown:
        return join([data, update], site)
    window = [i for i in range(len(site.ins[0][0])) if i not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    updates_batch = [i for i in range(len(site.ins[2][0])) if i not in d.update_window_dims]
    if data.tag == "per_env" and data.axis in d.operand_batching_dims:
        at = d.scatter_indices_batching_dims[d.operand_batching_dims.index(data.axis)]
        fits = (index.tag != "per_env" or index.axis == at) and (
            update.tag != "per_env" or update.axis == updates_batch[at]
        )
        if fits:
            moved = [replace(k, axis=data.axis) for k in (data, update) if k.tag == "per_env" or k is data]
            k = join(moved, site)
            return k if index.tag == "uniform" else join([k, replace(index, axis=data.axis, degree=k.degree, zero=False)], site)
    elif data.tag == "per_env" and index.tag == "uniform" and data.axis in window:
        at = d.update_window_dims[window.index(data.axis)]
        if site.ins[2][0][at] == site.ins[0][0][data.axis] and update.axis in (at, -1):
            return join([data, replace(update, axis=data.axis)], site)
    elif data.tag == "uniform" and data.zero and adds and update.tag == "per_env" and update.axis in updates_batch:
        return Kind("partial", degree=update.degree + 1)  # a sum over environments into a table
    return local(f"`{site.name}` at {site.where} writes per-environment values into one array for all")


def _along(axes_of: Callable[[Site], Sequence[int]]) -> Rule:
    """Works along some axes, which must not be the environments': sort, cumulative sums, top k."""

    def rule(kinds: Sequence[Kind], site: Site) -> Kind:
        k = join(kinds, site) if site.name in _LINEAR_ALONG else _nonlinear(kinds, site)
        return _moved([k], site, None if k.axis in axes_of(site) else k.axis)

    return rule


def _sum(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,), axes = kinds, site.params["axes"]
    if k.tag == "per_env" and k.axis in axes:
        return Kind("partial", degree=k.degree + 1, zero=k.zero)
    return _moved(kinds, site, k.axis - sum(a < k.axis for a in axes))


def _reduce(kinds: Sequence[Kind], site: Site) -> Kind:
    k, axes = _nonlinear(kinds, site), site.params["axes"]
    if k.tag == "per_env" and k.axis in axes:
        return local(
            f"`{site.name}` at {site.where} reduces over environments, and only a mean can be "
            f"averaged over replicas"
        )
    return _moved([k], site, k.axis - sum(a < k.axis for a in axes))


def _dot(kinds: Sequence[Kind], site: Site) -> Kind:
    (lc, rc), (lb, rb) = site.params["dimension_numbers"]
    at: list[int | None] = []  # where each operand's environment axis goes; None: contracted
    for k, contract, batch, (shape, _), start in zip(
        kinds, (lc, rc), (lb, rb), site.ins, (0, len(site.ins[0][0]) - len(lc) - len(lb)), strict=True
    ):
        if k.tag == "per_env":
            free = [i for i in range(len(shape)) if i not in (*contract, *batch)]
            at.append(
                None if k.axis in contract
                else list(batch).index(k.axis) if k.axis in batch
                else len(batch) + start + free.index(k.axis)
            )
    degree, zero = sum(k.degree for k in kinds), any(k.zero for k in kinds)
    if len(at) == 2 and at[0] != at[1]:
        return local(f"`dot_general` at {site.where} has two axes that grow with the environments")
    both = _product([replace(k, axis=0, degree=0, zero=False) for k in kinds], site)
    if both.tag == "local":
        return both
    if at and at[0] is None:
        pairs = zip(lc, rc, strict=True)
        aligned = (kinds[0].axis, kinds[1].axis) in pairs
        return Kind("partial", degree=degree + 1, zero=zero) if aligned else _moved(kinds, site, None)
    return replace(both, axis=at[0] if at else -1, degree=degree, zero=zero)  # type: ignore[arg-type]


def _conv(kinds: Sequence[Kind], site: Site) -> Kind:
    x, w = kinds
    d = site.params["dimension_numbers"]
    grouped = site.params["feature_group_count"] != 1 or site.params["batch_group_count"] != 1
    both = _product([replace(k, axis=0, degree=0, zero=False) for k in kinds], site)
    degree, zero = x.degree + w.degree, x.zero or w.zero
    if both.tag != "per_env":
        return both if both.tag == "local" else replace(both, degree=degree, zero=zero)
    if x.tag == "per_env" and x.axis == d.lhs_spec[0] and w.tag == "uniform" and not grouped:
        return replace(x, axis=d.out_spec[0], degree=degree, zero=zero)
    if x.tag == w.tag == "per_env" and (x.axis, w.axis) == (d.lhs_spec[1], d.rhs_spec[1]) and not grouped:
        return Kind("partial", degree=degree + 1, zero=zero)
    return _moved([both], site, None)


def _window(kinds: Sequence[Kind], site: Site) -> Kind:
    k = _nonlinear(kinds[:1], site)
    whole = k.tag != "per_env" or site.params["window_dimensions"][k.axis] == 1
    return _moved([k], site, k.axis if whole else None)


def _iota(kinds: Sequence[Kind], site: Site) -> Kind:
    grown = site.grown()
    if site.params["dimension"] in grown:
        return local(
            f"`iota` at {site.where} numbers the environments (`arange(num_envs)`), and every "
            f"replica would make the same numbers: make them in `init` and keep them in the state"
        )
    return Kind("per_env", grown[0]) if grown else UNIFORM


def _random(kinds: Sequence[Kind], site: Site) -> Kind:
    k, grown = _nonlinear(kinds, site), site.grown()
    if k.tag == "uniform" and grown:
        return local(
            f"`{site.name}` at {site.where} makes noise for all environments from one key, and every "
            f"replica would draw the same: keep one key per environment in the state"
        )
    return k if not grown or k.tag == "local" or grown == [k.axis] else _moved([k], site, None)


def _averaged(kinds: Sequence[Kind], site: Site) -> Kind:
    (k,) = kinds
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


def _opaque(kinds: Sequence[Kind], site: Site) -> Kind:
    k = _nonlinear(kinds, site)
    if k.tag == "uniform" and not any(site.grown(i) for i in range(len(site.outs))):
        return k
    return k if k.tag == "local" else local(
        f"`{site.name}` at {site.where} is not known to keep environments apart"
    )


Rule = Callable[[Sequence[Kind], Site], Kind]

_LINEAR = "neg copy real imag add sub add_any stop_gradient name zeros_like"
_NONLINEAR = """abs acos acosh and clamp asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil cos cosh digamma eq eq_to erf erf_inv
    erfc exp exp2 expm1 floor ge gt is_finite le le_to lgamma log log1p logistic lt lt_to max min ne nextafter not or
    population_count pow reduce_precision rem round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin
    sinh sqrt tan tanh xor clz random_fold_in random_clone mulhi igamma igammac polygamma"""
_ALONG = {
    "cumsum": lambda s: [s.params["axis"]],
    "cumprod": lambda s: [s.params["axis"]],
    "cummax": lambda s: [s.params["axis"]],
    "cummin": lambda s: [s.params["axis"]],
    "cumlogsumexp": lambda s: [s.params["axis"]],
    "split": lambda s: [s.params["axis"]],
    "sort": lambda s: [s.params["dimension"]],
    "top_k": lambda s: [len(s.ins[0][0]) - 1],
    "cholesky": lambda s: [len(s.ins[0][0]) - 1, len(s.ins[0][0]) - 2],
}
_LINEAR_ALONG = {"cumsum", "split"}

RULES: dict[str, Rule] = {
    **dict.fromkeys(_LINEAR.split(), join),
    **dict.fromkeys(_NONLINEAR.split(), _nonlinear),
    **{name: _along(axes) for name, axes in _ALONG.items()},
    **dict.fromkeys(("mul",), _product),
    "div": lambda kinds, site: _product(kinds, site, sign=-1),
    "convert_element_type": _convert,
    "integer_pow": _power,
    "square": _power,
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "slice": _slice,
    "rev": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter-sub": _scatter,
    "reduce_sum": _sum,
    **dict.fromkeys(
        ("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"), _reduce
    ),
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "reduce_window_max": _window,
    "reduce_window_sum": _window,
    "iota": _iota,
    **dict.fromkeys(("random_bits", "random_split", "random_wrap", "random_unwrap"), _random),
    "averaged": _averaged,
}


def apply_rule(kinds: Sequence[Kind], site: Site) -> list[Kind]:
    """The kinds of an equation's outputs."""
    if site.name == "optimization_barrier":
        return list(kinds)
    kind = RULES.get(site.name, _opaque)(kinds, site)
    return [kind] * len(site.outs)
