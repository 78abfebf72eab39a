"""The ways to do one thing, by name: files of a folder, installed packages, or `module:NAME`.

LAUNCHERS = Registry("launcher", "hocket.runtime.launch.launchers", "LAUNCHER",
                     group="hocket.launchers")
LAUNCHERS["threads"]                # the LAUNCHER of launchers/threads.py
LAUNCHERS["mine.py:SlowLauncher"]   # of a file or a module; every worker imports it, too

Without a package it holds what others have installed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hocket.errors import unknown
from hocket.system.names import find


class Registry:
    """Finds the ways to do one thing. Nothing is imported before it is asked for."""

    def __init__(
        self, kind: str, package: str = "", attribute: str = "", *, group: str = ""
    ) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._attribute = attribute

    @cached_property
    def built_in(self) -> Mapping[str, Any]:
        """The ways that come with hocket, by the names of their files, all imported."""
        return {name: self._built_in(name) for name in self._files}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all ways, those of installed packages after our own."""
        return (*self._files, *(name for name in self._installed if name not in self._files))

    def __contains__(self, name: str) -> bool:
        return ":" in name or name in self.names

    def __getitem__(self, name: str) -> Any:
        """The way of this name; `ValueError` with a suggestion where there is none."""
        if name in self._files:
            return self._built_in(name)
        if name in self._installed:
            return self._load(self._installed[name])
        if name.count(":") > 1:
            raise ValueError(f"`{name}` has options, and a {self.kind} takes none: leave them out.")
        if ":" in name:
            return find(name)
        own = " One of your own is `module:NAME` or `file.py:NAME`."
        raise ValueError(unknown(self.kind, name, self.names) + own)

    def make(self, name: str, protocol: type, **options: Any) -> Any:
        """The way of this name; of a class, or of a function that makes one, what that makes.

        `ValueError` where the options are not for it, or a member of the Protocol is missing.
        """
        found = self[name]
        if callable(found) and (isinstance(found, type) or lacking(found, protocol)):
            try:
                inspect.signature(found).bind(**options)
            except TypeError as error:
                raise ValueError(f"the {self.kind} `{name}` cannot be made: {error}.") from None
            found = found(**options)
        elif options:
            raise ValueError(f"`{name}` is made already, and takes no options: leave them out.")
        if missing := lacking(found, protocol):
            raise ValueError(
                f"`{name}` is no {self.kind}: it has no {', '.join(f'`{x}`' for x in missing)}. "
                f"`{protocol.__module__}.{protocol.__name__}` says what one has."
            )
        return found

    @cached_property
    def _files(self) -> tuple[str, ...]:
        folder = importlib.import_module(self.package).__path__ if self.package else ()
        return tuple(sorted(module.name for module in pkgutil.iter_modules(folder)))

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)} if self.group else {}

    def _load(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist else point.value
            raise ImportError(
                f"the {self.kind} `{point.name}` of the package {package} cannot be imported: "
                f"{error}. Mend that, or uninstall {package}."
            ) from error

    def _built_in(self, name: str) -> Any:
        module = importlib.import_module(f"{self.package}.{name}")
        return vars(module)[self._attribute] if self._attribute else module


def lacking(found: object, protocol: type) -> list[str]:
    """The members of a Protocol that something has not."""
    parts = [vars(each) for each in protocol.__mro__]
    own = (name for part in parts for name in (*part.get("__annotations__", {}), *part))
    members = dict.fromkeys(name for name in own if not name.startswith("_"))
    return [name for name in members if name not in dir(found)]
