"""Holds the picture of who imports whom (CONTRIBUTING.md), read from the source without running it.

A module belongs to a *part*: the first name after `hocket` (`hocket.core.plan` is of `core`).
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "hocket"

WHAT = {"algorithms", "envs", "replay", "nn", "ops"}
WHERE = {"distribute", "cluster", "runtime"}
# Where the two columns meet.
TOP = {
    "cli",
    "commands",
    "flags",
    "experiment",
    "outcome",
    "planning",
    "replaying",
    "saved",
    "searching",
    "seeing",
    "training",
} | {
    "testing",
    "__init__",
}

JAXPR_MODULES = ("jax.extend.core", "jax.core", "jax._src")
JAXPR_FILES = {f"core/{name}.py" for name in ("graph", "axes", "digest", "host", "loops")}
JAXPR_NAMES = {  # allowed besides
    "core/averaged.py": {"jax.extend.core.Primitive"},
    "core/backend.py": {"jax.extend.core.Primitive"},
}

MAX_LINES = 400
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
    """One imported name: `from hocket.core import plan` in `file` is `hocket.core.plan`."""

    file: str
    line: int
    name: str

    @property
    def source(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")

    @property
    def target(self) -> str | None:
        """The part of hocket that is imported, or None for a name of somebody else's."""
        package, *rest = self.name.split(".")
        if package != "hocket":
            return None
        return rest[0] if rest and is_part(rest[0]) else "__init__"

    def __str__(self) -> str:
        return f"src/hocket/{self.file}:{self.line} imports {self.name}"


def is_part(name: str) -> bool:
    return (SRC / name).is_dir() or (SRC / f"{name}.py").is_file()


@cache
def imports() -> list[Import]:
    return [found for path in sorted(SRC.rglob("*.py")) for found in imports_of(path)]


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


def test_imports_are_found() -> None:
    """Without this, a moved directory would make every rule below pass."""
    assert {"core", "envs", "ops", "runtime"} <= {found.source for found in imports()}
    assert any(found.target == "core" for found in imports())


def test_what_never_imports_where() -> None:
    wrong = [i for i in imports() if i.source in WHAT and i.target in WHERE]
    assert not wrong, listed(wrong)


def test_where_never_imports_what() -> None:
    wrong = [i for i in imports() if i.source in WHERE and i.target in WHAT]
    assert not wrong, listed(wrong)


def test_only_the_top_imports_the_top() -> None:
    """Or the two columns would reach each other through `hocket.training`."""
    wrong = [i for i in imports() if i.source not in TOP and i.target in TOP]
    assert not wrong, listed(wrong)


def test_core_imports_jax_and_errors() -> None:
    allowed = {"jax", "numpy", *sys.stdlib_module_names}
    wrong = [
        i
        for i in imports()
        if i.source == "core"
        and i.target not in {"core", "errors"}
        and i.name.partition(".")[0] not in allowed
    ]
    assert not wrong, listed(wrong)


def test_errors_and_report_import_nothing_of_ours() -> None:
    wrong = [
        i
        for i in imports()
        if i.source in {"errors", "report"} and i.target not in {None, i.source}
    ]
    assert not wrong, listed(wrong)


def test_native_imports_errors_only() -> None:
    """Both columns stand on it, as on `core`; and `core` does without it."""
    wrong = [
        i for i in imports() if i.source == "native" and i.target not in {None, "native", "errors"}
    ]
    assert not wrong, listed(wrong)


def test_distribute_imports_core_and_cluster() -> None:
    allowed = {None, "distribute", "core", "cluster", "errors"}
    wrong = [i for i in imports() if i.source == "distribute" and i.target not in allowed]
    assert not wrong, listed(wrong)


def test_runtime_never_imports_distribute() -> None:
    wrong = [i for i in imports() if i.source == "runtime" and i.target == "distribute"]
    assert not wrong, listed(wrong)


def test_few_files_read_jaxprs() -> None:
    """Jaxpr types are the part of jax most likely to change: four files to mend, not twenty."""
    wrong = [
        i
        for i in imports()
        if i.name.startswith(JAXPR_MODULES)
        and i.file not in JAXPR_FILES
        and i.name not in JAXPR_NAMES.get(i.file, set())
    ]
    assert not wrong, listed(wrong)


def test_files_stay_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(SRC.rglob("*.py"))}
    wrong = [f"{p.relative_to(ROOT)}: {n} lines" for p, n in lengths.items() if n > MAX_LINES]
    assert not wrong, f"past {MAX_LINES} lines, look for the second subject: " + ", ".join(wrong)


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
