"""Walks over the equations of a program: labels, calls, and where the user wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend import source_info_util
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from hocket.core.program.fragment import Label, read_label


def source_line(eqn: JaxprEqn, within: str = "a line inside jax") -> str:
    """Return where the user wrote an equation, as in `ppo.py:120 (PPO.update)`.

    Return `within` for an equation that comes from no line of the user.
    """
    path, colon, rest = source_info_util.summarize(eqn.source_info).partition(":")
    if not colon:
        return within
    line, _, function = rest.partition(" ")
    name = function.strip("()").rpartition("<locals>.")[2]
    return f"{path.rpartition('/')[2]}:{line.partition(':')[0]} ({name})"


def scan_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many inputs of a `scan` are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # jax 0.11 and later
    return len(consts), len(carry)


def label_of(eqn: JaxprEqn) -> Label | None:
    return read_label(eqn.params["name"]) if eqn.primitive.name == "jit" else None


def labels_of(eqn: JaxprEqn) -> Iterator[Label]:
    """Yield the outermost fragments in an equation."""
    if label := label_of(eqn):
        yield label
        return
    for jaxpr in jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            yield from labels_of(inner)


def equations(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """Yield an equation, and all equations in it at any depth."""
    yield eqn
    for jaxpr in jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            yield from equations(inner)


def named_by(primitive: Any, eqn: JaxprEqn) -> Iterator[Any]:
    """Yield the functions that an equation calls through `primitive`, at any depth.

    Each such call names its function in its parameter `of`.
    """
    return (inner.params["of"] for inner in equations(eqn) if inner.primitive is primitive)


def count_calls(jaxpr: Jaxpr, role: str) -> int:
    """Return how often fragments with a certain role run in one run of a program."""
    total = 0
    for eqn in jaxpr.eqns:
        label = label_of(eqn)
        inner = [count_calls(j, role) for j in jaxprs_in_params(eqn.params)]
        if label and label.role == role:
            total += max(1, sum(inner))
        elif eqn.primitive.name == "cond":
            total += max(inner)
        else:
            total += eqn.params.get("length", 1) * sum(inner)
    return total
