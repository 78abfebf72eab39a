"""What a value on a replicated place is.

With `r` replicas each holds `num_envs / r` environments. A value there is

- *per-environment*: it has an environment axis, and replica `i` holds the `i`-th share of it;
- *uniform*: the same on every replica;
- *partial*: reduced over the replica's environments and not yet averaged: only linear equations may
  follow, into `averaged`;
- *local*: anything else. It differs from the fused program's value, so it must not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Tag = Literal["uniform", "per_env", "partial", "local"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    tag: Tag
    axis: int = -1
    outer: int = 0
    """The axis is laid out as [outer][environments...]; 0: constant along it, so any layout."""
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


class ShapePair(NamedTuple):
    """The shapes of one value in two traces, of different numbers of environments."""

    shape: Shape
    other: Shape


@dataclass(frozen=True)
class Site:
    """An equation as the rules see it: its parameters, and its shapes at both sizes."""

    name: str
    params: dict[str, Any]
    ins: Sequence[ShapePair]
    outs: Sequence[ShapePair]
    where: str
    floats: bool
    """Whether inputs and outputs are all floating point: a conversion of them is linear."""

    def grown(self, out: int = 0) -> list[int]:
        """The axes of an output that grow with the number of environments."""
        return [i for i, (a, b) in enumerate(zip(*self.outs[out], strict=True)) if a != b]


def summed(k: Kind) -> Kind:
    """The kind of a sum over the environments of such a value."""
    return Kind("partial", degree=k.degree + 1, zero=k.zero)


def meets(site: Site) -> Kind:
    return local(
        f"`{site.name}` at {site.where} lets a mean over this replica's environments meet other "
        f"values before it is averaged: wrap the mean in `averaged(...)`"
    )


def join(kinds: Sequence[Kind], site: Site) -> Kind:
    """The kind of a sum of such values, or of a choice between them."""
    known = [k for k in kinds if not k.zero]
    per_env = [k for k in kinds if k.tag == "per_env"]
    layouts = {(k.axis, k.outer) for k in per_env if k.outer}
    for k in known:
        if k.tag == "local":
            return k
    tags = {k.tag for k in known}
    if "partial" in tags and per_env:
        return meets(site)
    if len({k.degree for k in known}) > 1:
        return local(f"`{site.name}` at {site.where} adds a sum over environments to others")
    if len(layouts) > 1 or len({k.axis for k in per_env}) > 1:
        return local(f"`{site.name}` at {site.where} combines environments that lie differently")
    degree, zero = (known[0].degree if known else 0), bool(kinds) and not known
    if per_env:
        axis, outer = layouts.pop() if layouts else (per_env[0].axis, 0)
        return Kind("per_env", axis, outer, degree, zero)
    return Kind("partial" if "partial" in tags else "uniform", degree=degree, zero=zero)


def product(kinds: Sequence[Kind], site: Site, sign: int = 1) -> Kind:
    """The kind of a product (or with `sign=-1` a quotient) of two values."""
    a, b = kinds
    if "local" in (a.tag, b.tag):
        return a if a.tag == "local" else b
    if "partial" in (a.tag, b.tag) and (sign < 0 or a.tag != "uniform") and b.tag != "uniform":
        return meets(site)
    both = join([replace(k, degree=0, zero=False) for k in kinds], site)
    if both.tag == "local":
        return both
    zero = a.zero or (b.zero and sign > 0)
    return replace(both, degree=a.degree + sign * b.degree, zero=zero)


def nonlinear(kinds: Sequence[Kind], site: Site) -> Kind:
    """The kind of anything else that is computed from such values, element by element."""
    for k in kinds:
        if k.tag == "local":
            return k
    if any(k.tag == "partial" for k in kinds):
        return meets(site)
    if any(k.degree for k in kinds):
        return local(
            f"`{site.name}` at {site.where} depends on the number of environments, which is "
            f"another one in a replica"
        )
    return join([replace(k, zero=False) for k in kinds], site)
