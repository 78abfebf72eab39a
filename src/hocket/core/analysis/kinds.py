"""The kinds of values on a replicated place, and how they combine.

Each of `r` replicas runs the step on `num_envs / r` environments. The fused program, which runs it
on all of them, decides what is right. A kind says how a value on a replica is related to the same
value in the fused program:

- *per-environment*: it has an environment axis, and replica `i` holds the `i`-th share of it;
- *uniform*: every replica holds the fused program's value;
- *partial*: a linear function of a sum or mean over the replica's own environments. It differs
  between replicas, and the mean of the replicas' values is the fused program's value. That is not
  so for a value that grows with the number of environments, as a sum does (`Kind.degree`);
- *local*: nothing is known. It may differ from the fused program's value in any way.

A replica computes a wrong value where it mistakes its own environments for all of them. Examples
are a maximum over them, a mean that is not averaged over replicas, their number, their indices
(`arange(num_envs)`), noise for all of them from one key, their order, and a choice among them.

Until a partial value reaches `averaged` (the mean over replicas), it may be used only linearly,
because only linear functions commute with that mean. Two replicas with the means 1 and 3
have the fused mean 2, whose square is 4; the mean of their squares is 5. So the square of a partial
value is local, while the square of `averaged(mean)` is uniform.

A wrong value does no harm as long as nobody sees it. So a program may make local values, and is
refused where one would reach the state, a metric or another place (`axes.check_kind`). `averaged`
cannot put a local value right: its mean over replicas is local too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Tag = Literal["uniform", "per_env", "partial", "local"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """The relation between a replica's value and the right value, from a run without replicas."""

    tag: Tag
    axis: int = -1
    """The environment axis of a per-environment value."""
    outer: int = 0
    """The number of times that `axis` runs through all environments: 1 for a plain environment
    axis, more if another axis was merged into it, as in [time * environments]. If the value is
    constant along `axis`, any number would be right, and `outer` is 0."""
    degree: int = 0
    """The value grows as the number of environments to this power: 1 for a sum over environments,
    0 for a mean."""
    zero: bool = False
    """True if the value is known to be zero. A zero can be added to values of any degree."""
    why: str = ""
    """The reason why a value is local, for the error message."""


UNIFORM = Kind("uniform")
ZERO = Kind("uniform", zero=True)


def local(why: str) -> Kind:
    """Return the kind of a value that may be wrong; `why` is the reason."""
    return Kind("local", why=why)


class ShapePair(NamedTuple):
    """The shapes of one value in two traces with different numbers of environments."""

    shape: Shape
    other: Shape


@dataclass(frozen=True)
class Site:
    """An equation, described for the rules that find the kinds of its outputs.

    The shapes of its inputs and outputs are those in both traces.
    """

    name: str
    params: dict[str, Any]
    ins: Sequence[ShapePair]
    outs: Sequence[ShapePair]
    where: str
    floats: bool
    """True if all inputs and outputs are floating point. Conversions and divisions that involve
    whole numbers round, so they are not linear."""

    def grown(self, out: int = 0) -> list[int]:
        """Return the axes of an output that grow with the number of environments."""
        return [i for i, (a, b) in enumerate(zip(*self.outs[out], strict=True)) if a != b]

    def resizes(self, axis: int) -> bool:
        """Return True if the first input and the first output differ in size along an axis."""
        return any(a[axis] != b[axis] for a, b in zip(self.ins[0], self.outs[0], strict=True))


def summed(k: Kind) -> Kind:
    """Return the kind that a per-environment value of kind `k` gets by a sum over environments."""
    return Kind("partial", degree=k.degree + 1, zero=k.zero)


def moved(k: Kind, site: Site, axis: int | None) -> Kind:
    """Return `k` with its environment axis moved to `axis`.

    If `axis` is None, the environments were mixed, and the result is local.
    """
    if k.tag != "per_env":
        return k
    if axis is None:
        return local(
            f"`{site.name}` at {site.where} picks among environments, reorders them or reduces "
            f"over them, and only a mean can be averaged over replicas"
        )
    return replace(k, axis=axis)


def not_yet_averaged(site: Site) -> Kind:
    """Return the local kind that results if a nonlinear function is applied to a partial value."""
    return local(
        f"`{site.name}` at {site.where} uses a mean over this replica's environments before it is "
        f"averaged: wrap the mean in `averaged(...)`"
    )


def join(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of a result that adds up values of these kinds, or chooses one of them."""
    # A known zero takes on the kind and the degree of whatever it is added to, but its environment
    # axis must match.
    known = [k for k in kinds if not k.zero]
    per_env = [k for k in kinds if k.tag == "per_env"]
    layouts = {(k.axis, k.outer) for k in per_env if k.outer}
    if wrong := [k for k in known if k.tag == "local"]:
        return wrong[0]
    tags = {k.tag for k in known}
    # Partial + uniform stays partial: the mean of (x + u) over replicas is mean(x) + u.
    if "partial" in tags and per_env:
        return not_yet_averaged(site)
    # A sum grows with the number of environments and a mean does not. A replica has fewer
    # environments, so if the two are added there, no mean over replicas gives the fused result.
    if len({k.degree for k in known}) > 1:
        return local(f"`{site.name}` at {site.where} adds a sum over environments to others")
    if len(layouts) > 1 or len({k.axis for k in per_env}) > 1:
        return local(f"`{site.name}` at {site.where} combines environments in different orders")
    degree, zero = (known[0].degree if known else 0), bool(kinds) and not known
    if per_env:
        axis, outer = layouts.pop() if layouts else (per_env[0].axis, 0)
        return Kind("per_env", axis, outer, degree, zero)
    return Kind("partial" if "partial" in tags else "uniform", degree=degree, zero=zero)


def product(kinds: Sequence[Kind], site: Site, sign: int = 1) -> Kind:
    """Return the kind of a product of two values, or with `sign=-1` of a quotient."""
    a, b = kinds
    if "local" in (a.tag, b.tag):
        return a if a.tag == "local" else b
    # A partial value may only be scaled by a uniform one. A product of two partial values is not
    # linear, and neither is division by a partial value. In a product with a per-environment value,
    # every replica would scale its rows by a different factor.
    if "partial" in (a.tag, b.tag) and (sign < 0 or a.tag != "uniform") and b.tag != "uniform":
        return not_yet_averaged(site)
    both = join([replace(k, degree=0, zero=False) for k in kinds], site)
    if both.tag == "local":
        return both
    zero = a.zero or (b.zero and sign > 0)
    return replace(both, degree=a.degree + sign * b.degree, zero=zero)


def nonlinear(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of `f(x, y, ...)` for a nonlinear elementwise `f`.

    `kinds` are the kinds of the arguments.
    """
    if wrong := [k for k in kinds if k.tag == "local"]:
        return wrong[0]
    if any(k.tag == "partial" for k in kinds):
        return not_yet_averaged(site)
    if any(k.degree for k in kinds):
        return local(
            f"`{site.name}` at {site.where} depends on the number of environments, which is "
            f"smaller in a replica"
        )
    return join([replace(k, zero=False) for k in kinds], site)
