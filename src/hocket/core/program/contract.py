"""The checks of an algorithm's contract that need only names, shapes and dtypes, not a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from hocket.core.program.algorithm import Algorithm
from hocket.core.program.fragment import Label
from hocket.errors import ContractError


def check_step(algorithm: Algorithm, state: Any, out: Any) -> None:
    """Refuse a step that returns no metrics, or a state unlike the one that it was given."""
    name = type(algorithm).__name__
    pair = isinstance(out, tuple) and len(out) == 2
    if not (pair and isinstance(out[1], dict)):
        found = f"metrics that are {type(out[1]).__name__}" if pair else type(out).__name__
        raise ContractError(
            f"{name}.step must return (state, metrics), metrics a dict of arrays; found {found}."
        )
    for metric, value in out[1].items():
        if not isinstance(value, jax.ShapeDtypeStruct):
            raise ContractError(
                f"the metric `{metric}` of {name} is {type(value).__name__}, and must be one array."
            )
    if jax.tree.structure(state) != jax.tree.structure(out[0]):
        before, after = leaf_names(state), leaf_names(out[0])
        gone, new = [n for n in before if n not in after], [n for n in after if n not in before]
        raise ContractError(
            f"{name}.step changes the structure of its state: it loses {gone[:3] or 'nothing'} and "
            f"gains {new[:3] or 'nothing'}. Return a state with the structure that `init` makes."
        )
    if difference := _first_difference(state, out[0]):
        raise ContractError(
            f"{name}.step changes its state: {difference}. Make `init` and `step` agree "
            f"(`.astype`, or a constant of the right dtype)."
        )


def check_names(algorithm: Algorithm, labels: Iterable[Label]) -> None:
    """Refuse two fragments with one name and different roles: a plan could not tell them apart."""
    roles: dict[str, str] = {}
    for label in labels:
        if roles.setdefault(label.name, label.role) != label.role:
            raise ContractError(
                f"{type(algorithm).__name__} has two fragments named `{label.name}`, with the "
                f"roles `{roles[label.name]}` and `{label.role}`: rename one of them."
            )


def check_state(algorithm: Algorithm, num_envs: int, expected: Any, state: Any) -> None:
    """Refuse a state that does not fit this algorithm with `num_envs` environments."""
    same = jax.tree.structure(state) == jax.tree.structure(expected)
    if reason := _first_difference(expected, state) if same else "it has another structure":
        raise ValueError(
            f"the state does not fit {type(algorithm).__name__} with {num_envs} environments: "
            f"{reason}. Use a state that this algorithm made, with the same settings."
        )


def leaf_names(tree: Any, prefix: str = "") -> list[str]:
    """Return the path of every leaf, as in `learner.params.policy`."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [prefix + jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def _first_difference(expected: Any, state: Any) -> str:
    """Describe the first leaf whose shape or dtype differs between two states; "" if none does."""
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(state), strict=True)
    for leaf, (a, b) in zip(leaf_names(expected), pairs, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            was, now = (f"{x.dtype}{list(x.shape)}" for x in (a, b))
            return f"`{leaf}` is {now} instead of {was}"
    return ""
