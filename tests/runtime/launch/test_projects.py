"""The user's own code reaches the nodes of a cluster, which share nothing with the run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import Channel, Place, Plan, PlanError
from hocket.runtime.launch.projects import code_of, lacks
from hocket.runtime.launch.watch import InstanceError
from tests.toys import Toy

SRC = Path(__file__).parents[3] / "src"

PROJECT = {
    "project/mine/__init__.py": "",
    "project/mine/net.py": """
import jax
import jax.numpy as jnp

def predict(w, x):
    return jnp.tanh(x @ w)

def slope(w, xs):
    return jax.grad(lambda w: jnp.square(predict(w, xs) - 0.5).mean())(w)
""",
    "project/mine/field.py": """
from dataclasses import dataclass
from shared import squash

@dataclass(frozen=True)
class Field:
    pull: float = 0.1

    def move(self, x, action):
        return 0.9 * x + self.pull * squash(action)[:, None]
""",
    "elsewhere/shared.py": """
import jax.numpy as jnp

def squash(x):
    return jnp.tanh(x)
""",
    "project/mine/algorithm.py": """
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hocket import fragment
from .field import Field
from .net import predict, slope

class State(NamedTuple):
    x: Any
    w: Any

@dataclass(frozen=True)
class Mine:
    field: Field = Field()
    env_steps: int = 1000
    num_envs: int = 8

    def init(self, key, num_envs):
        return State(jax.random.normal(key, (num_envs, 4)), jnp.ones(4))

    @fragment
    def env(self, x, action):
        return self.field.move(x, action)

    @fragment
    def act(self, w, x):
        return predict(w, x)

    @fragment(role="learn")
    def update(self, w, xs):
        return w - 0.1 * slope(w, xs)

    def step(self, state):
        def one(x, _):
            return self.env(x, self.act(state.w, x)), x
        x, xs = jax.lax.scan(one, state.x, None, 3)
        w = self.update(state.w, xs)
        return State(x, w), {"w": w.sum()}
""",
    "project/mine/strategy.py": """
from hocket import Channel, Mean, Place, Plan

def spread(graph, cluster):
    ends = cluster.devices[0], cluster.devices[-1]
    place = Place("all", ["env", "act", "learn"], ends, replicas=2)
    means = {"all": Mean("../project/wires/own_mean.py:Own")}
    return Plan(graph, [place], means=means, launch=cluster.launch)

def apart(graph, cluster):
    places = [
        Place("actor", ["env", "act"], cluster.devices[:1]),
        Place("learner", ["learn"], cluster.devices[-1:]),
    ]
    channel = Channel(transport="../project/wires/own.py:Own")
    return Plan(graph, places, {"actor -> learner": channel}, launch=cluster.launch)
""",
    "project/wires/own.py": """
from hocket.runtime.channels.transports.tcp import Tcp

class Own(Tcp):
    def listen(self, link, here):
        print("listening with", __file__, flush=True)
        return super().listen(link, here)
""",
    "project/wires/own_mean.py": """
from hocket.runtime.averaging.ways.tcp import Tcp

class Own(Tcp):
    name = "own"

    def listen(self, members, index, sites, space):
        print("averaging with", __file__, flush=True)
        return super().listen(members, index, sites, space)
""",
    "project/train.py": """
from dataclasses import dataclass
import hocket
from hocket import averaged, fragment
from hocket.testing import difference
from mine.algorithm import Mine
from mine.net import slope
from mine.strategy import apart, spread

@dataclass(frozen=True)
class Averaged(Mine):
    @fragment(role="learn")
    def update(self, w, xs):
        return w - 0.1 * averaged(slope(w, xs))

for algorithm, strategy in ((Mine(), apart), (Averaged(), spread)):
    fused = hocket.run(algorithm, iterations=3)
    result = hocket.run(algorithm, iterations=3, distribute=strategy, cluster="loopback:2")
    print(result.plan)
    print(strategy.__name__, "differs by", difference(fused.state, result.state))
""",
    "cwd/mine.py": "raise AssertionError('of the working folder of the run')",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)


def test_a_project_of_packages_and_files(tmp_path: Path) -> None:
    """A package with relative imports, with an environment, a strategy, a transport and a mean.

    One algorithm is defined in the script, one in the package. The run is started in another
    folder, and one module comes from a third one.
    """
    write(tmp_path, PROJECT)
    path = os.pathsep.join(map(str, (SRC, tmp_path / "elsewhere")))
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "../project/train.py"], cwd=tmp_path / "cwd", env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "apart differs by 0.0" in done.stdout, done.stderr + done.stdout
    (differs,) = (x for x in done.stdout.splitlines() if x.startswith("spread differs by"))
    assert float(differs.rpartition(" ")[2]) < 1e-6
    kept = tmp_path / "cache" / "hocket" / "code"
    used = [line.split(" with ") for line in done.stdout.splitlines() if " with " in line]
    assert sorted(who for who, _ in used) == [
        "[all/0 on n0] averaging", "[all/1 on n1] averaging", "[learner/0 on n1] listening",
    ]  # fmt: skip
    for who, file in used:
        assert Path(file).is_relative_to(kept)
        assert Path(file).name == ("own.py" if "listening" in who else "own_mean.py")
    assert f"sent to the nodes: 8 files of {tmp_path / 'project'}" in done.stdout
    assert f"sent to the nodes: 1 file of {tmp_path / 'elsewhere'}" in done.stdout
    assert len(list(kept.iterdir())) == 2


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on `sys.path`, with a cache and imported modules of its own."""
    before = set(sys.modules)
    (tmp_path / "project").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "project")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "project"
    for name in set(sys.modules) - before:
        if name.startswith("ship_"):
            del sys.modules[name]


ALGORITHM = """
from dataclasses import dataclass
from tests.toys import Toy

@dataclass(frozen=True)
class Mine(Toy):
    def seen(self, xs):
        {body}
        return xs
"""
PATH: dict[str, Any] = {"distribute": "actor_learner:actors=1", "cluster": "loopback:1"}


def made(project: Path, name: str, body: str = "pass") -> Any:
    """Write a module with an algorithm, and make that."""
    write(project, {f"{name}.py": ALGORITHM.format(body=body)})
    return importlib.import_module(name).Mine()


def test_the_projects_of_a_plan(project: Path) -> None:
    algorithm = made(project, "ship_one")
    code = code_of(hocket.plan(algorithm, **PATH))
    assert {x.folder for x in code.projects} == {project, SRC.parent}  # and that of tests.toys
    assert code.modules == ("ship_one",)  # which imports the others itself


def test_code_that_is_chosen(project: Path) -> None:
    algorithm = made(project, "ship_chosen")
    write(project, {"other.py": ""})
    ship = [str(project / "ship_chosen.py"), str(SRC.parent / "tests" / "toys.py")]
    plan = hocket.plan(algorithm, **PATH, ship=ship)
    assert plan.ship == tuple(ship)
    assert f"sent to the nodes: 1 file of {project}" in str(plan)
    with pytest.raises(PlanError, match=r"`ship` \(a, b\) has no effect without a cluster"):
        hocket.plan(algorithm, ship=["a", "b"])


def test_a_module_that_was_not_sent(project: Path) -> None:
    """Refused by the steward, before any instance starts."""
    algorithm = made(project, "ship_absent")
    with pytest.raises(PlanError, match=r"^the node `n0` has no module `ship_absent`\. Install .*"):
        hocket.run(algorithm, iterations=1, **PATH, ship=[str(SRC.parent / "tests")])


def test_a_module_that_a_node_does_not_have(project: Path) -> None:
    """An installed package stays; here it is imported only while an instance traces."""
    packages = project / "site-packages"
    write(packages, {"ship_installed.py": "value = 1"})
    sys.path.insert(0, str(packages))  # undone by the fixture
    algorithm = made(project, "ship_user", "import ship_installed")
    with pytest.raises(
        InstanceError,
        match=r"(?s)instance `\w+/0` failed:\nTraceback.*the node `n0` has no module "
        r"`ship_installed`\. Install what is missing there, or send it along .*`--ship FOLDER",
    ):
        hocket.run(algorithm, iterations=1, **PATH)


def test_modules_that_a_node_lacks() -> None:
    assert lacks("n1", "a", "b").startswith("the node `n1` has no modules `a`, `b`. Install what")


def test_a_folder_of_300_mb_is_refused(project: Path) -> None:
    algorithm = made(project, "ship_large")
    for number in (1, 2):
        with (project / f"{number}.bin").open("wb") as file:
            file.truncate(number * 100 << 20)
    with pytest.raises(
        PlanError,
        match=r"it has 3 files of 300\.0 MiB.* 50\.0 MiB are sent\. The largest are 2\.bin "
        r"\(200\.0 MiB\), 1\.bin \(100\.0 MiB\), ship_large\.py .*--ship",
    ):
        hocket.plan(algorithm, **PATH)


def test_a_file_that_the_plan_names_and_nobody_sends(project: Path) -> None:
    write(project, {"own.py": PROJECT["project/wires/own.py"]})
    name = str(project / "own.py")

    def own(graph: Any, cluster: Any) -> Plan:
        places = (
            Place("actor", ["env", "act"], cluster.devices[:1]),
            Place("learner", ["learn"], cluster.devices[:1]),
        )
        channels = {"actor -> learner": Channel(transport=f"{name}:Own")}
        return Plan(graph, places, channels, launch=cluster.launch)

    code = code_of(hocket.plan(Toy(), distribute=own, cluster="loopback:1"))
    index, path = code.files[name]
    assert code.projects[index].folder / path == project / "own.py"
    with pytest.raises(PlanError, match=r"names `\S+own\.py`, which lies in nothing that is sent"):
        hocket.plan(Toy(), distribute=own, cluster="loopback:1", ship=[str(SRC.parent / "tests")])


def test_a_node_that_cannot_keep_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "file").write_text("where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "file"))
    with pytest.raises(
        PlanError, match=r"node `n0` cannot use the code of this run: .*Set XDG_CACHE_HOME on"
    ):
        hocket.run(Toy(), iterations=1, **PATH)
