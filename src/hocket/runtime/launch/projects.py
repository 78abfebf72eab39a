"""The user's own code on other machines: which folders a plan needs there, and how they get there.

A class in a module travels as the module's name, so each node needs that module. The folders of
the user's own modules are sent to the stewards, which keep them (`hocket.system.code`). Installed
packages are not sent: the nodes must have them.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hocket.core.plan.data import Plan
from hocket.errors import PlanError
from hocket.runtime.launch.nodes import Node
from hocket.runtime.launch.shipping import pack
from hocket.system.code.archive import archive_of
from hocket.system.code.origin import origins, reachable
from hocket.system.code.project import Project, as_paths, chosen, project_of
from hocket.system.names import file_modules, module_named

CHUNK_NBYTES = 1 << 20
"""The bytes of an archive in one message, so that signs of life are not held up by a long one."""


class Named(NamedTuple):
    """A file that a plan names, as in `mine.py:MyTransport`, and where it is in a project."""

    project: int
    path: Path
    """Relative to the folder of the project."""


class Code(NamedTuple):
    """The code that the nodes of a plan need, for its algorithm, transports and averages."""

    algorithm: bytes
    """The algorithm, as `shipping.pack` packed it."""
    projects: tuple[Project, ...]
    modules: tuple[str, ...]
    """The outermost packages and modules that each node must find, installed or sent."""
    files: Mapping[str, Named]
    """The files that the plan names, by the paths that it gives them."""


def with_code(plan: Plan, ship: str | Path | Iterable[str | Path]) -> Plan:
    """Return a plan that sends the code in `ship`, and notes what it sends. Refuse too much code.

    If `ship` is empty, the plan sends the folders of the user's own modules that it needs.
    """
    paths = as_paths(ship)
    if not plan.launch.nodes:
        if paths:
            raise PlanError(
                f"`ship` ({', '.join(paths)}) has no effect without a cluster, because code is "
                f"sent only to other machines: leave it out, or name a `cluster`."
            )
        return plan
    made = copy.copy(plan)  # with everything that was computed for the plan so far
    vars(made).update(ship=paths)  # the class is frozen
    notes = (f"sent to the nodes: {project}" for project in code_of(made).projects)
    vars(made).update(notes=(*plan.notes, *notes))
    return made


def code_of(plan: Plan) -> Code:
    """Return the code that the nodes of a plan need. Refuse folders that are too large."""
    packed, modules = pack(plan.graph.algorithm, plan.graph.state)
    homes = {name.rpartition(":")[0] for name in _own_names(plan)}
    named = {home: module_named(home) for home in sorted(homes)}
    files = {
        home: Path(vars(module)["__file__"]).resolve()
        for home, module in named.items()
        if home.endswith(".py")
    }
    modules |= named.keys() - files.keys()
    if plan.ship:
        projects = [chosen(Path(path)) for path in plan.ship]
    else:
        projects = _projects({*modules, *(x.__name__ for x in named.values())}, files.values())
    found = {home: _place_in(projects, home, file) for home, file in files.items()}
    needed = {name.partition(".")[0] for name in modules} & sys.modules.keys()
    return Code(packed, tuple(projects), tuple(sorted(needed - _everywhere())), found)


def send(code: Code, nodes: Sequence[Node]) -> dict[str, dict[str, str]]:
    """Send each node the code that it lacks, and have its instances find it.

    Return, by node, where the files are there that the plan names. Refuse a node that lacks a
    module.
    """
    archives = {made.digest: made.data for made in map(archive_of, code.projects)}
    for node in nodes:
        node.tell("find_code", list(archives))
    for node in nodes:
        for digest in node.answer():
            data = archives[digest]
            for start in range(0, len(data), CHUNK_NBYTES):
                node.tell("add_code", digest, data[start : start + CHUNK_NBYTES])
        node.tell("use_code", list(archives), code.modules)
    files: dict[str, dict[str, str]] = {}
    for node in nodes:
        folders, absent, trouble = node.answer()
        if trouble:
            raise PlanError(f"the node `{node.name}` cannot use the code of this run: {trouble}")
        if absent:
            raise PlanError(lacks(node.name, *absent))
        files[node.name] = {
            home: f"{folders[named.project]}/{named.path.as_posix()}"
            for home, named in code.files.items()
        }
    return files


def lacks(node: str, *modules: str) -> str:
    """Return the message for modules that the instances on a node cannot import."""
    named = ", ".join(f"`{module}`" for module in modules)
    what = "module" if len(modules) == 1 else "modules"
    return (
        f"the node `{node}` has no {what} {named}. Install what is missing there, or send it along "
        f'if it is your own code: `ship=("FOLDER", ...)`, `--ship FOLDER ...`.'
    )


def _own_names(plan: Plan) -> list[str]:
    """Return the names of the user's own transports and averages in a plan.

    The user's own launcher is not among them, because it works on the machine of the run only.
    """
    names = [channel.transport for channel in plan.channels.values()]
    names += [mean.way for mean in plan.means.values()]
    return [name for name in names if ":" in name]


def _projects(modules: Iterable[str], files: Iterable[Path]) -> list[Project]:
    """Return the projects of these modules, of those that they refer to, and of these files."""
    needed: dict[Path, set[Path]] = defaultdict(set)
    for name in reachable(modules):
        for origin in origins(name):
            needed[origin.folder].add(origin.file)
    for file in files:
        above = (folder for folder in sorted(needed) if file.is_relative_to(folder))
        needed[next(above, file.parent)].add(file)
    return [project_of(folder, needed[folder]) for folder in sorted(needed)]


def _place_in(projects: Sequence[Project], home: str, file: Path) -> Named:
    for i, project in enumerate(projects):
        if file.is_relative_to(project.folder):
            path = file.relative_to(project.folder)
            if path in project.files:
                return Named(i, path)
    raise PlanError(
        f"the plan names `{home}`, which lies in nothing that is sent to the nodes "
        f"({', '.join(str(project.folder) for project in projects)}): add it to `ship`."
    )


def _everywhere() -> set[str]:
    """Return the modules that every node has, and those that the algorithm brings by value."""
    files = (module.__name__ for module in file_modules())
    return {"__main__", "hocket", *sys.stdlib_module_names, *files}
