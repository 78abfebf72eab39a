"""Strategies as Python sees them: functions whose options a type checker and an editor know."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
import hocket.strategies
from hocket.strategies import actor_learner, strategies
from hocket.strategies.actor_learner import actor_learner as of_its_module

OURS = {name: made for name, made in strategies().items() if made.__module__.startswith("hocket.")}
CALLS = """\
import hocket
from hocket import Plan, make
from hocket.algorithms import PPO
from hocket.strategies import actor_learner, sebulba
from hocket.strategies.actor_learner import actor_learner as of_its_module


@hocket.strategy
def mine(graph: hocket.Graph, cluster: object, *, actors: int = 2) -> Plan:
    raise NotImplementedError


actor_learner(actors=4, lag=1)
of_its_module(lag="free", max_age=8)
sebulba()
mine(actors=8)
hocket.run(PPO(env=make("CartPole-v1")), distribute=actor_learner(actors=4))
actor_learner(actor=4)
actor_learner(actors="four")
actor_learner(4)
mine(actor=8)
reveal_type(actor_learner)
"""
WRONG = ["actor_learner(actor=", 'actor_learner(actors="', "actor_learner(4", "mine(actor="]


def test_the_type_checker_knows_the_options(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    source = str(Path(hocket.__file__).parents[1])
    settings = {"typeCheckingMode": "standard", "extraPaths": [source]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    told: dict[str, list[str]] = {"error": [], "information": []}
    for each in diagnostics:
        line = CALLS.splitlines()[each["range"]["start"]["line"]]
        told[each["severity"]].append(f"{line}: {each['message']}")
    assert len(told["error"]) == len(WRONG), done.stdout
    for line, error in zip(WRONG, told["error"], strict=True):
        assert error.startswith(line), (line, error)
    assert 'No parameter named "actor"' in told["error"][0]
    (shown,) = told["information"]
    assert "(*, actors: int = 2, learners: int = 1, lag: int | str = 0," in shown
    assert "graph" not in shown and "-> Strategy" in shown


def test_every_strategy_is_exported_as_a_function() -> None:
    assert actor_learner is of_its_module is strategies()["actor_learner"]
    assert set(OURS) <= set(hocket.strategies.__all__)
    for name, made in OURS.items():
        assert vars(hocket.strategies)[name] is made


def test_signature_and_docstring_are_those_of_the_options() -> None:
    parameters = inspect.signature(actor_learner).parameters.values()
    assert [p.name for p in parameters] == [
        "actors", "learners", "lag", "max_age", "batch", "backend",
    ]  # fmt: skip
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert (inspect.getdoc(actor_learner) or "").startswith("Trajectories up, parameters down")


def test_an_option_without_a_name() -> None:
    with pytest.raises(ValueError, match=r"`actor_learner` takes its options by name \(actors, .*"):
        vars(hocket.strategies)["actor_learner"](4)


INSTALLED = """\
import hocket
from hocket import Place, Plan


@hocket.strategy
def afar(graph, cluster, *, actors=3):
    \"\"\"Actors of an installed package.\"\"\"
    return Plan(graph, (Place("actor", ("env", "act"), replicas=actors), Place("l", ("learn",))))
"""


def installed(folder: Path, entry: str, code: str) -> str:
    """A package `far_away` as pip leaves it, and what a fresh Python then says of strategies."""
    about = folder / "far_away-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: far-away\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[hocket.strategies]\nafar = {entry}\n")
    (folder / "far_away.py").write_text(INSTALLED)
    path = f"import sys; sys.path.insert(0, {str(folder)!r}); "
    done = subprocess.run(
        [sys.executable, "-c", path + code], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_an_installed_package_brings_its_own(tmp_path: Path) -> None:
    """By name, with options, and in the list."""
    code = "from hocket.strategies import *; print(options_text(strategies()['afar'])); "
    code += "print(callable(resolve('afar:actors=5'))); resolve('afar:actor=5')"
    text = installed(tmp_path, "far_away:afar", code)
    assert text.splitlines()[:2] == ["actors=3", "True"]
    assert "unknown option `actor` of the strategy `afar`. Did you mean `actors`?" in text


def test_an_installed_one_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    text = installed(tmp_path, "far_away:gone", "import hocket.strategies as s; s.strategies()")
    assert "the strategy `afar` of the package far-away cannot be imported" in text
    assert "uninstall far-away" in text
