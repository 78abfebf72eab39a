"""Plugins of one kind, by name: built-in files, entry points of packages, or `module:NAME`.

LAUNCHERS = Registry("launcher", "hocket.runtime.launch.launchers", "LAUNCHER",
                     group="hocket.launchers")
LAUNCHERS["threads"]                # the LAUNCHER of launchers/threads.py
LAUNCHERS["mine.py:SlowLauncher"]   # from a file or a module, which every worker imports, too

Without `package`, a registry holds only the entry points of installed packages.
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
    """The plugins of one kind. Each plugin is imported when it is first asked for."""

    def __init__(
        self, kind: str, package: str = "", attribute: str = "", *, group: str = ""
    ) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._attribute = attribute

    @cached_property
    def built_in(self) -> Mapping[str, Any]:
        """The plugins that come with hocket, all imported, by their names."""
        return {name: self._built_in(name) for name in self._files}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all plugins: built-in plugins first, then plugins of installed packages."""
        return (*self._files, *(name for name in self._installed if name not in self._files))

    def __getitem__(self, name: str) -> Any:
        """Return the plugin with this name, or raise `ValueError` with the names that exist."""
        if name in self._files:
            return self._built_in(name)
        if name in self._installed:
            return self._load(self._installed[name])
        if name.count(":") > 1:
            raise ValueError(f"`{name}` has options, and a {self.kind} takes none: leave them out.")
        if ":" in name:
            return find(name)
        own = " Name your own as `module:NAME` or `file.py:NAME`."
        raise ValueError(unknown(self.kind, name, self.names) + own)

    def make(self, name: str, protocol: type, **options: Any) -> Any:
        """Return the plugin with this name. If it is a class or a factory function, call it first.

        Raise `ValueError` if the plugin does not take these options, or if it lacks a member of the
        Protocol.
        """
        plugin = self[name]
        if callable(plugin) and (isinstance(plugin, type) or lacking(plugin, protocol)):
            try:
                inspect.signature(plugin).bind(**options)
            except TypeError as error:
                raise ValueError(f"the {self.kind} `{name}` cannot be made: {error}.") from None
            plugin = plugin(**options)
        elif options:
            raise ValueError(f"`{name}` is not a class, so it takes no options: leave them out.")
        if missing := lacking(plugin, protocol):
            raise ValueError(
                f"`{name}` is no {self.kind}: it has no {', '.join(f'`{x}`' for x in missing)}. "
                f"`{protocol.__module__}.{protocol.__name__}` lists what it needs."
            )
        return plugin

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
                f"{error}. Repair or uninstall {package}."
            ) from error

    def _built_in(self, name: str) -> Any:
        module = importlib.import_module(f"{self.package}.{name}")
        return vars(module)[self._attribute] if self._attribute else module


def lacking(thing: object, protocol: type) -> list[str]:
    """Return the members of a Protocol that an object lacks."""
    classes = [vars(each) for each in protocol.__mro__]
    names = (name for each in classes for name in (*each.get("__annotations__", {}), *each))
    members = dict.fromkeys(name for name in names if not name.startswith("_"))
    return [name for name in members if name not in dir(thing)]
