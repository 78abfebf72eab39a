"""Pack an algorithm for other processes, together with the user's classes that they cannot import.

Classes from a script, a notebook or a `file.py` are pickled by value. If such a class is registered
with JAX as a tree of arrays, only this process knows that, so the registration is packed, too.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import cloudpickle
import jax

from hocket.errors import PlanError
from hocket.system.code.origin import home_of
from hocket.system.names import file_modules

# A class, the names of its fields that hold arrays, and the names of its other fields. Both lists
# are empty if it is no dataclass.
_Registered = tuple[type, list[str], list[str]]


class Packed(NamedTuple):
    """An algorithm as bytes, which `unpack` reads in another process."""

    data: bytes
    modules: set[str]
    """The modules that the bytes refer to by name, so that the other process imports them."""


def pack(algorithm: Any, state: Any) -> Packed:
    """Pack an algorithm with the user's classes, including those of the trees in `state`."""
    for module in file_modules():
        cloudpickle.register_pickle_by_value(module)
    try:
        data = io.BytesIO()
        pickler = _Pickler(data)
        pickler.dump((algorithm, list(_registered(state))))
        return Packed(data.getvalue(), pickler.modules - _by_value())
    except (TypeError, pickle.PicklingError) as error:
        raise PlanError(
            f"{type(algorithm).__name__} cannot be sent to other processes: {error}. Remove "
            f'that object from the algorithm, or use launch="threads".'
        ) from error


class _Pickler(cloudpickle.Pickler):
    """A pickler that notes the modules of all objects that it pickles."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        # Called for every module, class, function and instance, even if it is pickled by name.
        if name := home_of(obj):
            self.modules.add(name)
        return super().reducer_override(obj)


def _by_value() -> set[str]:
    """Return the modules whose classes and functions are packed themselves, not their names."""
    return {"__main__", *cloudpickle.list_registry_pickle_by_value()}


def unpack(packed: bytes) -> Any:
    """Register the packed classes with the JAX of this process, and return the algorithm."""
    algorithm, registered = pickle.loads(packed)
    for cls, data, meta in registered:
        if data or meta:
            jax.tree_util.register_dataclass(cls, data, meta)
        else:
            jax.tree_util.register_pytree_node_class(cls)
    return algorithm


def _registered(state: Any) -> Iterator[_Registered]:
    """Yield the user's own classes that are registered with JAX as trees.

    They are found in the user's modules and in the state.
    """
    modules = [sys.modules["__main__"], *file_modules()]
    named = [x for module in modules for x in vars(module).values() if isinstance(x, type)]
    classes = dict.fromkeys([*named, *(type(node) for node in _nodes(state))])
    names = {module.__name__ for module in modules}
    for cls in classes:
        if cls.__module__ not in names and "<locals>" not in cls.__qualname__:
            continue
        if _registers_itself(cls):
            raise PlanError(
                f"`{cls.__qualname__}` is a `flax.struct.PyTreeNode` that other processes cannot "
                f"import. Decorate it with `@flax.struct.dataclass` instead of deriving it, define "
                f'it at the top level of an importable module, or use launch="threads".'
            )
        if "tree_flatten" in vars(cls):  # first, since such a class may be a dataclass as well
            yield cls, [], []
        elif dataclasses.is_dataclass(cls):
            yield from _fields(cls)


def _registers_itself(cls: type) -> bool:
    """Return True if a class registers itself with JAX when it is defined, because of its base."""
    flax = sys.modules.get("flax.struct")
    return flax is not None and issubclass(cls, flax.PyTreeNode)


def _nodes(tree: Any) -> Iterator[Any]:
    """Yield a tree and all trees in it, but no leaves."""
    children, _ = jax.tree_util.tree_flatten(tree, is_leaf=lambda x: x is not tree)
    if children and children[0] is not tree:
        yield tree
        for child in children:
            yield from _nodes(child)


def _fields(cls: type) -> Iterator[_Registered]:
    """Yield a dataclass, its array fields and its other fields, if JAX has it registered as a tree.

    Yield nothing for any other dataclass.
    """
    # JAX cannot be asked which fields of a class hold arrays. So each field of a probe holds its
    # own name, and the leaves of the flattened probe are the names of these fields.
    probe = object.__new__(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in names:
        object.__setattr__(probe, name, name)
    leaves, _ = jax.tree_util.tree_flatten_with_path(probe, is_leaf=lambda x: x is not probe)
    data = [leaf for path, leaf in leaves if path]  # an empty path: the probe itself is a leaf
    if names and (data or not leaves):
        yield cls, data, [name for name in names if name not in data]
