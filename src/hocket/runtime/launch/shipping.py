"""An algorithm on its way to other processes, with what they must know of the user's classes.

Classes of a script, a notebook or a `file.py` go by value, since no other process can import them.
That they are trees of arrays is known only to the JAX of the process that has registered them.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import jax

from hocket.errors import PlanError
from hocket.system.names import file_modules

_Registered = tuple[type, list[str], list[str]]  # a dataclass, its fields of arrays, its others


def pack(algorithm: Any, state: Any) -> bytes:
    """An algorithm, given a state of it, as bytes that `unpack` takes."""
    for module in file_modules():
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((algorithm, list(_registered(state))))
    except (TypeError, pickle.PicklingError) as error:
        raise PlanError(
            f"{type(algorithm).__name__} cannot be sent to other processes: {error}. Leave that "
            f'out of it, or use launch="threads".'
        ) from error


def unpack(packed: bytes) -> Any:
    """The algorithm, after its classes were made known to this process's JAX."""
    algorithm, registered = pickle.loads(packed)
    for cls, data, meta in registered:
        if data or meta:
            jax.tree_util.register_dataclass(cls, data, meta)
        else:
            jax.tree_util.register_pytree_node_class(cls)
    return algorithm


def _registered(state: Any) -> Iterator[_Registered]:
    """The trees of arrays among the classes that go by value."""
    modules = [sys.modules["__main__"], *file_modules()]
    named = [x for module in modules for x in vars(module).values() if isinstance(x, type)]
    found = [*named, *(type(node) for node in _nodes(state))]
    names = {module.__name__ for module in modules}
    for cls in dict.fromkeys(found):
        local = "<locals>" in cls.__qualname__
        if cls.__module__ not in names and not local:
            continue
        if _registers_itself(cls):
            raise PlanError(
                f"`{cls.__qualname__}` is a `flax.struct.PyTreeNode` of a script, which other "
                f"processes cannot make again: decorate it with `@flax.struct.dataclass` in place "
                f'of that base, move it into a module, or use launch="threads".'
            )
        if "tree_flatten" in vars(cls):  # first: it may be a dataclass besides
            yield cls, [], []
        elif dataclasses.is_dataclass(cls):
            yield from _fields(cls)


def _registers_itself(cls: type) -> bool:
    """Whether a class is known to jax by its base alone, from when it is made."""
    flax = sys.modules.get("flax.struct")
    return flax is not None and issubclass(cls, flax.PyTreeNode)


def _nodes(tree: Any) -> Iterator[Any]:
    """A tree and all the trees in it."""
    children, _ = jax.tree_util.tree_flatten(tree, is_leaf=lambda x: x is not tree)
    if children and children[0] is not tree:
        yield tree
        for child in children:
            yield from _nodes(child)


def _fields(cls: type) -> Iterator[_Registered]:
    """Which fields of a dataclass JAX takes for arrays, if it takes the class for a tree at all."""
    probe = object.__new__(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in names:
        object.__setattr__(probe, name, name)
    found, _ = jax.tree_util.tree_flatten_with_path(probe, is_leaf=lambda x: x is not probe)
    data = [leaf for path, leaf in found if path]
    if names and (data or not found):
        yield cls, data, [name for name in names if name not in data]
