"""Algorithms reach other processes with the trees of arrays they register, or are refused."""

from __future__ import annotations

import graphlib
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flax.struct
import jax
import pytest

import hocket
from hocket import PlanError
from hocket.runtime.launch.shipping import pack, unpack
from tests.faults import two
from tests.toys import Toy

ROOT = Path(__file__).parents[3]


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
    assert registered_by(packed.data, monkeypatch) == [(Node,), (Weights, ["w"], ["kind"])]


def test_classes_of_modules_register_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Toy().init(jax.random.key(0), 2)
    assert registered_by(pack(Toy(length=5), state).data, monkeypatch) == []


def test_a_class_that_registers_itself_is_refused() -> None:
    class Params(flax.struct.PyTreeNode):
        w: Any

    with pytest.raises(PlanError, match=r"Params` is a `flax\.struct\.PyTreeNode` that other"):
        pack(Toy(), [Params(1.0)])


def test_the_modules_that_an_algorithm_refers_to() -> None:
    """A class is sent by its module's name, one of a function by value, with what it refers to."""

    @dataclass(frozen=True)
    class Mine(Toy):
        def noise(self, x: Any, keys: Any) -> Any:
            return graphlib.TopologicalSorter, two, super().noise(x, keys)

    refers_to = pack(Mine(), ()).modules
    assert {"tests.toys", "tests.faults", "graphlib"} <= refers_to
    assert "__main__" not in refers_to
    assert "tests.faults" not in pack(Toy(), ()).modules


SCRIPT = """
import dataclasses
from functools import partial

import flax.struct
import jax

import hocket
from hocket.testing import difference
from tests.toys import Toy


@flax.struct.dataclass
class Weights:
    w: jax.Array
    kind: str = flax.struct.field(pytree_node=False, default="plain")


FIELDS = ["x", "keys", "weights", "key"]


@partial(jax.tree_util.register_dataclass, data_fields=FIELDS, meta_fields=[])
@dataclasses.dataclass
class State:
    x: jax.Array
    keys: jax.Array
    weights: Weights
    key: jax.Array


@jax.tree_util.register_pytree_node_class
class Moved:
    def __init__(self, x):
        self.x = x

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Sized:
    x: jax.Array

    def tree_flatten(self):
        return (self.x,), self.x.shape

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Mine(Toy):
    def init(self, key, num_envs):
        toy = super().init(key, num_envs)
        return State(toy.x, toy.keys, Weights(toy.w), toy.key)

    def step(self, state):
        def one(x, _):
            moved = Moved(self.env(x, self.act(state.weights.w, Sized(x).x), state.keys))
            return moved.x, moved

        x, moved = jax.lax.scan(one, state.x, None, 3)
        w, key, loss = self.update(state.weights.w, state.key, moved.x)
        return State(x, state.keys, state.weights.replace(w=w), key), {"loss": loss}


ends = [
    hocket.run(Mine(), iterations=3, distribute="actor_learner:actors=1", launch=launch).state
    for launch in ("threads", "processes")
]
print("difference", difference(*ends))
"""


ITSELF = """
import flax.struct
import jax

import hocket
from tests.toys import Toy


class Weights(flax.struct.PyTreeNode):
    w: jax.Array


hocket.run(Toy(), iterations=1, distribute="actor_learner:actors=1", launch="processes")
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )  # fmt: skip


def test_trees_of_a_script(tmp_path: Path) -> None:
    """Trees registered in four ways, in the state and inside a step; without a main guard."""
    done = run(SCRIPT, tmp_path)
    assert "difference 0.0" in done.stdout, done.stderr


def test_a_tree_that_registers_itself_is_refused_by_name(tmp_path: Path) -> None:
    done = run(ITSELF, tmp_path)
    assert "`Weights` is a `flax.struct.PyTreeNode` that other" in done.stderr
    assert "Decorate it with `@flax.struct.dataclass`" in done.stderr
    assert "InstanceError" not in done.stderr  # before any process has begun
