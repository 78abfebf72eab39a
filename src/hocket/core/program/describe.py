"""An algorithm as JSON and back, so that a file can record exactly what was run.

A dataclass becomes `{"class": "module:Name", ...its fields}`, and a function or class of a module
`{"object": "module:name"}`. Numbers, text, sequences and mappings are kept as they are. A class or
function from a file outside any package is named by the file: `path/to/file.py:SAC`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.errors import unknown
from hocket.system.names import find, path_of


def describe(value: Any, where: str = "the algorithm") -> Any:
    """Return `value` as JSON. A ValueError names the field that cannot be written down."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(k): describe(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [describe(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Fields left out of `repr` belong to a library, such as the parent of a flax module.
        names = [f.name for f in dataclasses.fields(value) if f.init and f.repr]
        about = {n: describe(value.__dict__[n], f"{where}.{n}") for n in names}
        return {"class": path_of(type(value)), **about}
    # A function, jitted or not, or a class. A method would lose the object it belongs to.
    if callable(value) and "__qualname__" in dir(value) and not inspect.ismethod(value):
        return {"object": path_of(value, where)}
    raise ValueError(
        f"`{where}` is {_short(value)}, which a configuration file cannot hold. Use numbers, text, "
        f"a dataclass, or a function of a module."
    )


def build(description: Any) -> Any:
    """Return the value that `describe` described. Sequences become tuples."""
    match description:
        case {"class": path, **fields}:
            cls = find(path)
            known = [f.name for f in dataclasses.fields(cls)]
            for name in fields.keys() - known:
                raise ValueError(unknown("field", name, known, where=f"of `{path}`"))
            return cls(**{name: build(value) for name, value in fields.items()})
        case {"object": path}:
            return find(path)
        case dict():
            return {name: build(value) for name, value in description.items()}
        case list():
            return tuple(map(build, description))
        case _:
            return description


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"a {type(value).__name__}"
