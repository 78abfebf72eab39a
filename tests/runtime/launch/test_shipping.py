"""Algorithms are packed for other processes, or refused if they cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.struct
import jax
import pytest

import hocket
from hocket import PlanError
from hocket.runtime.launch.shipping import pack, unpack
from tests.faults import two
from tests.toys import Toy


class Unpicklable(Toy):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a lock")


def test_an_algorithm_that_cannot_be_sent() -> None:
    with pytest.raises(
        hocket.PlanError, match=r"^Unpicklable cannot be sent .*: cannot pickle a lock.*threads"
    ):
        hocket.run(Unpicklable(), iterations=1, distribute=two, launch="processes")


def registered_by(packed: bytes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what a process registers with its JAX when it unpacks an algorithm."""
    calls: list[tuple[Any, ...]] = []
    for name in ("register_dataclass", "register_pytree_node_class"):
        monkeypatch.setattr(jax.tree_util, name, lambda *given: calls.append(given))
    assert unpack(packed) == Toy(length=5)
    return calls


def test_classes_of_a_script_are_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is defined in a function cannot be imported, and neither can one of a script."""

    @partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["kind"])
    @dataclass
    class Weights:
        w: Any
        kind: str = "plain"

    @jax.tree_util.register_pytree_node_class
    class Node:
        def __init__(self, x: Any) -> None:
            self.x = x

        def tree_flatten(self) -> Any:
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    @dataclass
    class Leaf:
        """A dataclass that JAX does not know."""

        x: int = 3

    state = [Node(Weights(1.0)), Leaf(), Weights(2.0, "other")]
    packed = pack(Toy(length=5), state)
    assert registered_by(packed, monkeypatch) == [(Node,), (Weights, ["w"], ["kind"])]


def test_classes_of_modules_register_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Toy().init(jax.random.key(0), 2)
    assert registered_by(pack(Toy(length=5), state), monkeypatch) == []


def test_a_class_that_registers_itself_is_refused() -> None:
    class Params(flax.struct.PyTreeNode):
        w: Any

    with pytest.raises(PlanError, match=r"Params` is a `flax\.struct\.PyTreeNode` of a script"):
        pack(Toy(), [Params(1.0)])
