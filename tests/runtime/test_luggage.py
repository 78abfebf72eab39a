"""Algorithms defined in scripts reach other processes, with the trees of arrays they register."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

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
    assert "`Weights` is a `flax.struct.PyTreeNode` of a script" in done.stderr
    assert "decorate it with `@flax.struct.dataclass`" in done.stderr
    assert "InstanceError" not in done.stderr  # before any process has begun
