"""An algorithm as JSON and back, so that a file can say exactly what was run.

A dataclass becomes `{"class": "module:Name", ...its fields}`, a function or class of a module
`{"object": "module:name"}`; numbers, text, sequences and mappings stay what they are. What was
defined in a file outside any package is named by the file: `path/to/file.py:SAC`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hocket.errors import unknown


def describe(value: Any, where: str = "the algorithm") -> Any:
    """`value` as JSON; a ValueError names the field that cannot be written down."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(k): describe(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [describe(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Fields that are left out of `repr` are a library's own, such as the parent of a module.
        names = [f.name for f in dataclasses.fields(value) if f.init and f.repr]
        about = {n: describe(value.__dict__[n], f"{where}.{n}") for n in names}
        return {"class": path_of(type(value)), **about}
    # A function, jitted or not, or a class; a method would lose the object it belongs to.
    if callable(value) and "__qualname__" in dir(value) and not inspect.ismethod(value):
        return {"object": path_of(value, where)}
    raise ValueError(
        f"`{where}` is {_short(value)}, which a configuration file cannot hold. Use numbers, text, "
        f"a dataclass, or a function of a module."
    )


def build(description: Any) -> Any:
    """What `describe` described; sequences become tuples."""
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


def path_of(thing: Any, where: str = "") -> str:
    """`module:name`, or `file.py:name` for what was defined outside any package."""
    name, module = thing.__qualname__, sys.modules[thing.__module__]
    if "<" in name:
        raise ValueError(
            f"`{where or name}` was defined inside a function, where a configuration file cannot "
            f"point to it. Move `{name.rpartition('.')[2]}` to the top of its module."
        )
    if module.__spec__ is not None and not module.__name__.startswith(_FILE):
        return f"{module.__spec__.name}:{name}"  # also of `python -m`, whose name is __main__
    file = Path(vars(module).get("__file__") or "")
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(
            f"`{name}` was not defined in a file, where a configuration could point to it. Put it "
            f"into one and import it from there; `hocket.run`, which keeps nothing, takes it as is."
        )
    return f"{file.resolve()}:{name}"


def find(path: str) -> Any:
    """What `package.module:name` or `path/to/file.py:name` names."""
    home, separator, name = path.rpartition(":")
    if not (separator and home and name):
        raise ValueError(f"`{path}` is not of the form `module:name` or `path/to/file.py:name`.")
    found: Any = _from_file(home) if home.endswith(".py") else _from_module(home)
    for part in name.split("."):
        public = [n for n in vars(found) if not n.startswith("_")]
        if part not in vars(found):
            raise ValueError(unknown("name", part, public, where=f"in `{home}`"))
        found = vars(found)[part]
    return found


def read_words(text: str) -> tuple[str, dict[str, Any]]:
    """`name:option=value,...` in its parts: `("CartPole-v1", {"gravity": 1.6})`.

    Numbers, booleans and None become what they are, anything else stays text.
    """
    *path, last = text.split(":")
    if "=" not in last:
        return text, {}
    options: dict[str, Any] = {}
    for option in last.split(","):
        name, _, value = option.partition("=")
        if not (name and value):
            raise ValueError(f"`{option}` in `{text}` is no option: write `option=value`.")
        try:
            options[name] = ast.literal_eval(value.title() if value in _BOOLS else value)
        except (ValueError, SyntaxError):
            options[name] = value
    return ":".join(path), options


_BOOLS = ("true", "false")
_FILE = "hocket_file_"


def file_modules() -> list[ModuleType]:
    """The modules that `find` has read from files: another process cannot import them by name."""
    return [module for name, module in sys.modules.items() if name.startswith(_FILE)]


def _from_file(file: str) -> ModuleType:
    path = Path(file).resolve()
    main = sys.modules.get("__main__")
    if main is not None and Path(vars(main).get("__file__") or "").resolve() == path:
        return main  # the script that is running: not a second time
    name = f"{_FILE}{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ValueError(f"there is no file `{file}` here ({Path.cwd()}).")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being made
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))  # as `python -m` has it, for modules beside the user
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise ValueError(
            f"there is no module `{name}`: install it, or name the file: `path/to/file.py:Name`."
        ) from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"a {type(value).__name__}"
