"""Enforces the rules of docs/architecture.md about who imports whom, by reading the source.

A module belongs to a *room*: `hocket.core.plan.data` is in the room `core.plan`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hocket.cluster.slices import slice_backends
from hocket.replay.service import CARRIERS
from hocket.runtime.averaging.known import AVERAGES
from hocket.runtime.channels.choice import TRANSPORTS
from hocket.runtime.launch import LAUNCHERS

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "hocket"

WHAT = {"algorithms", "envs", "replay", "nn", "ops"}
WHERE = {"strategies", "cluster", "runtime"}
BETWEEN = {"core"}
BELOW = {"errors", "system", "report"}
# The rooms above both columns.
TOP = {"__init__", "__main__", "cli", "training", "testing"}

ORDER = [
    {"errors"},
    {"system", "report"},
    {"core.program"},
    {"core.graph"},
    {"core.analysis", "core.projection"},
    {"core.plan"},
    {"cluster.nvidia"},
    {"cluster.devices", "cluster"},
    {"cluster.slices"},
    {"cluster.search", "cluster.survey"},
    {"cluster.node_survey"},
    {"runtime.compile", "runtime.observe"},
    {"runtime.channels", "runtime.averaging", "runtime.host_calls"},
    {"runtime.instance"},
    {"runtime.free"},
    {"runtime.launch"},
    {"runtime"},
]
"""Rooms from the bottom up: each imports only from itself and from earlier ones."""
LEVELS = {room: level for level, rooms in enumerate(ORDER) for room in rooms}

JAXPR_MODULES = ("jax.extend.core", "jax.core", "jax._src")
JAXPR_FILES = {
    "core/analysis/averages.py",
    "core/analysis/axes.py",
    "core/analysis/equations.py",
    "core/graph/digest.py",
    "core/graph/host_calls.py",
    "core/graph/trace.py",
    "core/graph/walk.py",
    "core/program/host.py",
    "core/program/loops.py",
}
JAXPR_NAMES = {  # single names that other files may import
    "core/program/averaged.py": {"jax.extend.core.Primitive"},
    "core/program/backend.py": {"jax.extend.core.Primitive"},
}

KINDS_OF_DEVICE = {"cpu", "gpu", "tpu", "cuda"}
NAMES_IN_CORE = {
    ("core/plan/checks.py", "processes"): "in errors, which say what to type",
    ("core/plan/checks.py", "threads"): "in errors, which say what to type",
    ("core/program/service.py", "near"): "the default of a field that core never reads",
}
"""The names that core may contain, and why no decision in core depends on them."""

MIRRORED = ("core", "runtime")
"""The parts whose every module has a test file of its name in the mirrored folder of tests."""
WITHOUT_TESTS: dict[str, str] = {}
"""The modules of these parts that have none, as `core/plan/data.py`, and the reason for each."""

MAX_LINES, MAX_FILES, MAX_METHODS, MAX_WITHOUT_TESTS = 400, 16, 20, 10
TEXT = {
    ".py",
    ".pyi",
    ".md",
    ".toml",
    ".txt",
    ".cfg",
    ".yaml",
    ".yml",
    ".json",
    ".sh",
    ".cpp",
    ".h",
}
HOME_PATH = re.compile(r"(?<![\w.~])/(?:home|root|Users)/\w+")


class Import(NamedTuple):
    """One imported name: `from hocket.core.plan import data` is `hocket.core.plan.data`."""

    file: str
    line: int
    name: str

    @property
    def source(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")

    @property
    def target(self) -> str | None:
        """The part of hocket that is imported, or None for another package."""
        package, *rest = self.name.split(".")
        if package != "hocket":
            return None
        return rest[0] if rest and is_part(rest[0]) else "__init__"

    @property
    def rooms(self) -> tuple[str, str]:
        """The room that imports, and the room that it imports from."""
        parts = self.file.removesuffix(".py").removesuffix("/__init__").split("/")
        return room_of(parts), room_of(self.name.split(".")[1:])

    def __str__(self) -> str:
        return f"src/hocket/{self.file}:{self.line} imports {self.name}"


def room_of(parts: list[str]) -> str:
    two = ".".join(parts[:2])
    return two if two in LEVELS else "".join(parts[:1])


def is_part(name: str) -> bool:
    return (SRC / name).is_dir() or (SRC / f"{name}.py").is_file()


@cache
def imports() -> list[Import]:
    return [imported for path in sorted(SRC.rglob("*.py")) for imported in imports_of(path)]


def imports_of(path: Path) -> Iterator[Import]:
    file = path.relative_to(SRC).as_posix()
    package = ("hocket", *path.relative_to(SRC).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, f"{module}.{alias.name}")


def listed(wrong: list[Import]) -> str:
    return "\n" + "\n".join(map(str, wrong))


def test_the_tree_is_the_picture() -> None:
    """If a directory moves, this fails. The rules below might then pass by mistake."""
    entries = {path.stem for path in SRC.iterdir() if path.name != "__pycache__"}
    assert entries == WHAT | WHERE | BETWEEN | BELOW | TOP | {"py"}  # py.typed
    for room in LEVELS:
        path = SRC / room.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), room
    inner = [f"{p.parent.name}.{p.name}" for part in ("core", "runtime") for p in folders(part)]
    assert set(inner) <= LEVELS.keys(), "a room without a place in the order"


def folders(part: str) -> list[Path]:
    return [path for path in (SRC / part).iterdir() if (path / "__init__.py").is_file()]


def test_what_never_imports_where() -> None:
    wrong = [i for i in imports() if i.source in WHAT and i.target in WHERE]
    assert not wrong, listed(wrong)


def test_where_never_imports_what() -> None:
    wrong = [i for i in imports() if i.source in WHERE and i.target in WHAT]
    assert not wrong, listed(wrong)


def test_only_the_top_imports_the_top() -> None:
    """Otherwise the two columns could reach each other through `hocket.training`."""
    wrong = [i for i in imports() if i.source not in TOP and i.target in TOP]
    assert not wrong, listed(wrong)


def test_rooms_stand_on_those_below() -> None:
    wrong = []
    for i in imports():
        source, target = i.rooms if i.target else ("", "")
        exports = i.file.endswith("__init__.py") and target.startswith(f"{source}.")
        if source in LEVELS and target in LEVELS and source != target and not exports:
            wrong += [i] if LEVELS[source] <= LEVELS[target] else []
    assert not wrong, listed(wrong)


def test_core_imports_jax_and_what_is_below() -> None:
    allowed = {"jax", "numpy", *sys.stdlib_module_names}
    wrong = [
        i
        for i in imports()
        if i.source == "core"
        and i.target not in BELOW | BETWEEN
        and i.name.partition(".")[0] not in allowed
    ]
    assert not wrong, listed(wrong)


def test_report_imports_nothing_of_ours() -> None:
    wrong = [i for i in imports() if i.source == "report" and i.target not in {None, "report"}]
    assert not wrong, listed(wrong)


def test_system_knows_no_rl() -> None:
    """Services of the operating system are below everything. All but one file do without JAX."""
    allowed = {None, "system", "errors"}
    wrong = [i for i in imports() if i.source in {"errors", "system"} and i.target not in allowed]
    wrong += [
        i
        for i in imports()
        if i.source == "system" and i.name.startswith("jax") and i.file != "system/on_host.py"
    ]
    assert not wrong, listed(wrong)


def test_strategies_import_core_and_cluster() -> None:
    allowed = {None, "strategies", "core", "cluster", "errors", "system"}
    wrong = [i for i in imports() if i.source == "strategies" and i.target not in allowed]
    assert not wrong, listed(wrong)


def test_runtime_never_imports_strategies() -> None:
    wrong = [i for i in imports() if i.source == "runtime" and i.target == "strategies"]
    assert not wrong, listed(wrong)


def test_few_files_read_jaxprs() -> None:
    """Jaxpr types are the part of JAX most likely to change, so few files may depend on them."""
    wrong = [
        i
        for i in imports()
        if i.name.startswith(JAXPR_MODULES)
        and i.file not in JAXPR_FILES
        and i.name not in JAXPR_NAMES.get(i.file, set())
    ]
    assert not wrong, listed(wrong)


def test_every_package_has_a_map() -> None:
    """The docstring of a package names every file and package in it."""
    missing = []
    for folder in sorted(path.parent for path in SRC.rglob("__init__.py")):
        about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        parts = {path.name for path in folder.glob("[!_]*.py")}
        parts |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
        missing += [
            f"{folder.relative_to(SRC)}: {part}" for part in sorted(parts) if part not in about
        ]
    assert not missing, "\n" + "\n".join(missing)


def test_every_module_has_tests_of_its_name() -> None:
    """A package's own `__init__` needs none: it has a map, Protocols and small records."""
    files = [path for part in MIRRORED for path in (SRC / part).rglob("*.py")]
    modules = {path.relative_to(SRC) for path in files if path.name != "__init__.py"}
    untested = {module.as_posix() for module in modules if not checks(file_of_tests(module))}
    wrong = [
        f"{x}: nothing is checked in {file_of_tests(Path(x)).relative_to(ROOT)}"
        for x in sorted(untested - WITHOUT_TESTS.keys())
    ]
    wrong += [f"{x}: has tests, or is gone" for x in sorted(WITHOUT_TESTS.keys() - untested)]
    assert not wrong, "\n" + "\n".join(wrong)
    assert len(WITHOUT_TESTS) <= MAX_WITHOUT_TESTS and all(WITHOUT_TESTS.values())


def file_of_tests(module: Path) -> Path:
    return ROOT / "tests" / module.parent / f"test_{module.name}"


def checks(path: Path) -> bool:
    """Return True if a test of a file asserts something. One that only imports does not count."""
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    tests = (x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name.startswith("test_"))
    return any(
        isinstance(node, ast.Assert) or (isinstance(node, ast.Attribute) and node.attr == "raises")
        for test in tests
        for node in ast.walk(test)
    )


def test_folders_stay_small() -> None:
    folders = [path.parent for path in SRC.rglob("__init__.py")]
    counts = {path: sum(1 for file in path.glob("*.py")) for path in folders}
    wrong = [f"{path.relative_to(ROOT)}: {n} files" for path, n in counts.items() if n > MAX_FILES]
    assert not wrong, f"past {MAX_FILES} files, look for the second room: " + ", ".join(wrong)


def test_files_stay_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(SRC.rglob("*.py"))}
    wrong = [f"{p.relative_to(ROOT)}: {n} lines" for p, n in lengths.items() if n > MAX_LINES]
    assert not wrong, f"past {MAX_LINES} lines, look for the second subject: " + ", ".join(wrong)


def test_core_names_no_way_to_run() -> None:
    """Core passes on the names of launchers, transports etc., but never decides by them."""
    names = {*LAUNCHERS.names, *TRANSPORTS.names, *AVERAGES.names, *slice_backends(), *CARRIERS}
    assert {"threads", "shared_memory", "shm", "whole", "near"} <= names
    wrong = [
        f"src/hocket/{file}:{line} writes `{name}`: {text!r}"
        for file, line, text in literals("core")
        for name in names_in(text, names | KINDS_OF_DEVICE)
        if (file, name) not in NAMES_IN_CORE
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_names_are_seen_in_literals() -> None:
    names = {"shm", "threads"}
    assert names_in("shm", names) == names_in("shm:", names) == ["shm"]
    assert names_in('use launch="threads", or `shm`', names) == ["threads", "shm"]
    assert not names_in("threads of shmem", names)


def literals(part: str) -> Iterator[tuple[str, int, str]]:
    """Yield the string literals in a part's code, except docstrings, with their file and line."""
    for path in sorted((SRC / part).rglob("*.py")):
        tree = ast.parse(path.read_text())
        about = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in about:
                file, text = path.relative_to(SRC).as_posix(), node.value
                yield from [(file, node.lineno, text)] if isinstance(text, str) else []


def names_in(text: str, names: set[str]) -> list[str]:
    """Return the names that a text consists of or quotes; as a bare word, `threads` is English."""
    return re.findall(rf"""(?:^|["'`=])({"|".join(names)})(?=["'`:/]|$)""", text)


def test_classes_stay_small() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {node.name} has {len(methods)} methods"
        for path in sorted(SRC.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if len(methods := [x for x in node.body if isinstance(x, ast.FunctionDef)]) > MAX_METHODS
    ]
    assert not wrong, f"past {MAX_METHODS} methods, look for the second class: " + ", ".join(wrong)


def test_no_text_names_a_home_directory() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if HOME_PATH.search(line)
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def texts() -> Iterator[Path]:
    folders = ("src", "tests", "docs", "examples", "benchmarks", "scripts", ".ci")
    candidates = [*ROOT.iterdir(), *(p for folder in folders for p in (ROOT / folder).rglob("*"))]
    yield from (p for p in candidates if p.is_file() and (p.suffix in TEXT or not p.suffix))
