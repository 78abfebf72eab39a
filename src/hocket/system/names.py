"""Objects by name, as `package.module:name` or `path/to/file.py:name`, and options as text."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hocket.errors import unknown


def path_of(thing: Any, where: str = "") -> str:
    """Return the name by which `find` imports an object: `module:name` or `file.py:name`."""
    name, module = thing.__qualname__, sys.modules[thing.__module__]
    if "<" in name:
        raise ValueError(
            f"`{where or name}` was defined inside a function, where a configuration file cannot "
            f"point to it. Move `{name.rpartition('.')[2]}` to the top level of its module."
        )
    if module.__spec__ is not None and not module.__name__.startswith(_FILE):
        # Not `module.__name__`, which is `__main__` for a module that `python -m` runs.
        return f"{_public_home(module.__spec__.name, thing)}:{name}"
    file = Path(vars(module).get("__file__") or "")
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(
            f"`{name}` was not defined in a file, so a configuration file cannot point to it. "
            f"Move it to a file and import it from there, or use `hocket.run`, which writes no "
            f"configuration file."
        )
    return f"{file.resolve()}:{name}"


def _public_home(module: str, thing: Any) -> str:
    """Return the outermost package that has an object: `hocket.envs`, not `hocket.envs.classic`.

    So a name in a configuration file stays valid when the module moves within that package.
    """
    package, *rooms = module.split(".")
    for count in range(1, len(rooms)) if package == "hocket" else ():
        home = ".".join([package, *rooms[:count]])
        if vars(sys.modules[home]).get(thing.__qualname__) is thing:
            return home
    return module


def find(path: str) -> Any:
    """Import the object that `package.module:name` or `path/to/file.py:name` names."""
    home, separator, name = path.rpartition(":")
    if not (separator and home and name):
        raise ValueError(f"`{path}` is not of the form `module:name` or `path/to/file.py:name`.")
    thing: Any = module_named(home)
    for part in name.split("."):
        if part not in vars(thing):
            public = [n for n in vars(thing) if not n.startswith("_")]
            raise ValueError(unknown("name", part, public, where=f"in `{home}`"))
        thing = vars(thing)[part]
    return thing


def module_named(home: str) -> ModuleType:
    """Import the module that `package.module` or `path/to/file.py` names."""
    return _from_file(home) if home.endswith(".py") else _from_module(home)


def move_files(files: Mapping[str, str]) -> None:
    """Find files at other paths on this machine than on the one where they were named.

    move_files({"../mine.py": "/scratch/hocket/code/1f0c/mine.py"})
    find("../mine.py:Mine")
    """
    _moved.update(files)


def read_words(text: str) -> tuple[str, dict[str, Any]]:
    """Split `name:option=value,...` into the name and a dict of the options.

    `CartPole-v1:gravity=1.6` gives `("CartPole-v1", {"gravity": 1.6})`. Numbers, booleans and None
    are converted. Any other value stays text, and may itself be the name of an object, as in
    `sliced:slices=2,reduce=mine.py:Fifo`.
    """
    path, *given = _OPTIONS.split(text, maxsplit=1)
    options: dict[str, Any] = {}
    for option in given[0].split(",") if given else ():
        name, _, value = option.partition("=")
        if not (name and value):
            raise ValueError(f"`{option}` in `{text}` is no option: write `option=value`.")
        try:
            options[name] = ast.literal_eval(value.title() if value in _BOOLS else value)
        except (ValueError, SyntaxError):
            options[name] = value
    return path, options


_OPTIONS = re.compile(r":(?=[^:=]*=)")
_BOOLS = ("true", "false")
_FILE = "hocket_file_"
_moved: dict[str, str] = {}


def file_modules() -> list[ModuleType]:
    """Return the modules that `find` loaded from files. Other processes cannot import them."""
    return [module for name, module in sys.modules.items() if name.startswith(_FILE)]


def _from_file(file: str) -> ModuleType:
    path = Path(_moved.get(file, file)).resolve()
    main = sys.modules.get("__main__")
    if main is not None and Path(vars(main).get("__file__") or "").resolve() == path:
        return main  # the running script, which must not be loaded a second time
    name = f"{_FILE}{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ValueError(f"there is no file `{file}` here ({Path.cwd()}).")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its code runs: dataclasses look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))  # finds modules in the working folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but imports one that does not
        raise ValueError(
            f"there is no module `{name}`: install it, or name the file: `path/to/file.py:Name`."
        ) from error
