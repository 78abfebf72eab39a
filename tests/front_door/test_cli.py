"""The command line: what its commands do, and its error messages."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from tests.front import Hocket

import hocket as library
from hocket import make
from hocket.algorithms import PPO
from hocket.cluster.rates import Rate, save_rates
from hocket.strategies.anakin import anakin
from hocket.testing import difference
from hocket.training.folder import new_folder

ROOT = Path(__file__).parents[2]
SMALL = ("--num-envs", "8", "--length", "16", "--hidden", "8", "--minibatches", "2")
SHORT = (*SMALL, "--env-steps", "1280")  # ten iterations


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_help_needs_no_jax() -> None:
    code = "import sys; sys.argv = ['hocket', '--help']; from hocket.cli.main import main; main(); "
    code += "print('jax' in sys.modules, 'tyro' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
    assert "train an agent" in done.stdout


def test_help_of_an_algorithm_is_its_fields(hocket: Hocket) -> None:
    text = hocket.well("train", "ppo", "--help")
    for part in ("--learning-rate FLOAT", "--env NAME", "--seeds INT", "--eval-every", "--quiet"):
        assert part in text, part
    assert "Passes over each rollout." in text
    assert "--learning-rate" in hocket.well("train", "--help")


def test_a_run_is_a_folder(hocket: Hocket) -> None:
    out = hocket.well("train", "ppo", *SHORT, "--eval-every", "640", "--eval-episodes", "4")
    assert "ppo on CartPole-v1: compiling" in out and "saved in runs/ppo-CartPole-v1-1" in out
    folder = Path("runs/ppo-CartPole-v1-1")
    about = summary(folder)
    assert about["env_steps"] == 1280 and about["finished"] and about["seed"] == 0
    assert about["env_steps_per_second"] > 0 and about["wall_seconds"] > about["run_seconds"] > 0
    assert {"python", "hocket", "jax"} <= about["versions"].keys()
    assert about["hardware"]["devices"] and about["hardware"]["cores"]
    made = rows(folder)
    assert [r["iteration"] for r in made if "entropy" in r] == list(range(1, 11))
    assert [r["iteration"] for r in made if "eval_return_mean" in r] == [5, 10]
    ended = [(r["episodes"], r["return_mean"]) for r in made if r.get("episodes")]
    mean = sum(n * x for n, x in ended) / sum(n for n, _ in ended)
    assert 1 < sum(n for n, _ in ended) < 100
    assert np.isclose(about["return_mean"], mean)
    assert about["eval_return_mean"] == made[-1]["eval_return_mean"]
    evaluated = hocket.well("eval", "ppo-CartPole-v1-1")
    assert f"return {about['eval_return_mean']:.1f} " in evaluated and "4 episodes" in evaluated


def test_the_configuration_reproduces_the_run(hocket: Hocket) -> None:
    flags = ("--seed", "3", "--learning-rate", "0.01", "--env", "CartPole-v1:gravity=5.0")
    hocket.well("train", "ppo", *SHORT, *flags, "--name", "first", "--quiet")
    hocket.well("train", "--config", "runs/first/config.json", "--name", "second", "--quiet")
    hocket.well("train", "--config", "runs/first", "--seed", "4", "--name", "third", "--quiet")
    first, second, third = (library.load(f"runs/{name}") for name in ("first", "second", "third"))
    assert first.algorithm == second.algorithm and first.algorithm.env.env.gravity == 5.0
    assert difference(first.state, second.state) == 0.0
    assert difference(first.state, third.state) > 0.0
    rates = [[r["policy_loss"] for r in rows(Path(f"runs/{n}"))] for n in ("first", "second")]
    assert rates[0] == rates[1]


def test_eight_seeds_have_records_of_their_own(hocket: Hocket) -> None:
    hocket.well("train", "ppo", *SHORT, "--seeds", "8", "--name", "eight", "--eval-every", "1280",
                "--quiet")  # fmt: skip
    hocket.well("train", "ppo", *SHORT, "--seed", "5", "--name", "alone", "--quiet")
    folder = Path("runs/eight")
    losses = [tuple(r.get("policy_loss") for r in rows(folder / f"seed-{i}")) for i in range(8)]
    assert len(set(losses)) == 8
    each = [summary(folder / f"seed-{i}") for i in range(8)]
    assert [s["seed"] for s in each] == list(range(8))
    whole = summary(folder)
    assert np.isclose(whole["return_mean"], np.mean([s["return_mean"] for s in each]))
    fifth, alone = library.load(folder, agent=5), library.load("runs/alone")
    # In ten iterations a difference in the last bit grows, but not far.
    assert difference(fifth.state.learner.params, alone.state.learner.params) < 1e-3
    assert f"agent 5: return {each[5]['eval_return_mean']:.1f}" in hocket.well("eval", "eight")
    with pytest.raises(ValueError, match="agents 0 to 7, found agent=8"):
        library.load(folder, agent=8)


def test_names_count_up_and_are_not_overwritten(hocket: Hocket) -> None:
    hocket.well("train", "ppo", *SHORT, "--quiet")
    hocket.well("train", "ppo", *SHORT, "--quiet")
    assert sorted(p.name for p in Path("runs").iterdir()) == [
        "ppo-CartPole-v1-1", "ppo-CartPole-v1-2",
    ]  # fmt: skip
    done = hocket("train", "ppo", *SHORT, "--name", "ppo-CartPole-v1-1")
    assert done.code == 2 and "there is already a run in runs/ppo-CartPole-v1-1" in done.err
    again = hocket.well("train", "ppo", *SHORT, "--resume")
    assert "nothing is left to do" in again


def test_quiet_says_one_line(hocket: Hocket) -> None:
    out = hocket.well("train", "ppo", *SHORT, "--quiet", "--name", "still")
    line = r"return (\d+\.\d) after 1,280 steps, ([\d,]+) steps/s: runs/still\n"
    match, about = re.fullmatch(line, out), summary(Path("runs/still"))
    assert match, out
    assert match[1] == f"{about['return_mean']:.1f}"
    assert match[2] == f"{about['env_steps_per_second']:,}"


def test_ones_own_algorithm_environment_and_strategy(hocket: Hocket) -> None:
    Path("mine.py").write_text(
        "import hocket\n"
        "from hocket import Place, Plan\n"
        "from hocket.envs import CartPole, TimeLimit\n"
        "def short(limit=20):\n"
        "    return TimeLimit(CartPole(), limit)\n"
        "@hocket.strategy\n"
        "def two_actors(graph, cluster, *, replicas=2):\n"
        "    on = cluster.devices[:1]\n"
        "    return Plan(graph, [Place('actor', ('env', 'act'), on, replicas),\n"
        "                        Place('learner', ('learn',), on)])\n"
    )
    out = hocket.well("train", "ppo", *SHORT, "--env", "mine.py:short:limit=7", "--name", "own")
    assert "return" in out and summary(Path("runs/own"))["return_mean"] <= 7
    plan = hocket.well("plan", "ppo", *SMALL, "--distribute", "mine.py:two_actors:replicas=4")
    assert "actor x4: " in plan
    sac = f"{ROOT / 'examples/sac.py'}:SAC"
    assert "SAC: " in hocket.well("graph", sac, "--env", "Pendulum-v1")
    assert "--target-rate" in hocket.well("train", sac, "--help")


def test_lists(hocket: Hocket) -> None:
    envs = hocket.well("envs")
    assert "CartPole-v1           observes float32[4], acts one of 2\n" in envs
    assert "PositionOnlyCartPole  observes float32[2], acts one of 2\n" in envs
    listed = hocket.well("strategies")
    assert "options: devices=None" in listed and "options: actors=2,learners=1,lag=0" in listed
    assert "recurrent-ppo" in hocket.well("algorithms")
    assert hocket.well("--version").startswith("hocket 0.")
    command = [sys.executable, "-m", "hocket", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == hocket.well("--version")


def test_plan_starts_nothing(hocket: Hocket) -> None:
    out = hocket.well("plan", "dqn")
    assert "anakin: act, env, " in out and "nothing crosses" in out
    assert not Path("runs").exists()


def test_plan_of_several_places(hocket: Hocket) -> None:
    words = ("--distribute", "actor_learner:actors=4,lag=2", "--launch", "processes")
    out = hocket.well("plan", "ppo", *words, "--svg", "plan.svg")
    assert "actor x4: act, env" in out and "launched as processes" in out
    assert "2 iterations late" in out and "memory of each: state" in out
    drawn = Path("plan.svg").read_text()
    assert drawn.startswith("<svg") and "learner" in drawn
    assert "actor_learner:actors=2,learners=1,lag=0" in hocket("plan", "ppo", "--help").out


def test_plan_on_nodes(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch, nothing_is_left: None
) -> None:
    """The rates are those of the last measurement. Nothing is started to find out more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    words = ("plan", "ppo", *SMALL, "--distribute", "actor_learner:actors=4")
    out = hocket.well(*words, "--cluster", "loopback:2", "--svg", "plan.svg")
    assert re.search(r"\nactor x4: act, env  on n0.*n1/cpu:0.*\n", out)
    assert re.search(r"\non 2 nodes:\n    n0: actor.*\n    n1: actor.*\n", out)
    assert len(re.findall(r"n\d -> n\d .* not measured\n", out)) == 2
    assert "this machine" not in out
    drawn = Path("plan.svg").read_text()
    assert "2 nodes" in drawn and "not measured" in drawn
    save_rates("loopback:2", [Rate("n1", "n0", 2.0, 1e12), Rate("n0", "n1", 4.0, 1e12)])
    out = hocket.well(*words, "--cluster", "loopback:2", "--svg", "plan.svg")
    assert re.search(r"n0 -> n1 .* 2\.0 s\n", out) and re.search(r"n1 -> n0 .* 1\.0 s\n", out)
    assert "not measured" not in out + Path("plan.svg").read_text()
    assert "sent to the nodes" not in out  # hocket itself is installed there
    Path("mine.py").write_text("size = 8\n")
    out = hocket.well(*words, "--cluster", "loopback:2", "--ship", "mine.py")
    assert f"sent to the nodes: 1 file of {Path.cwd()} (9 B)\n" in out


@pytest.mark.usefixtures("forks")
def test_train_in_processes_with_a_trace(hocket: Hocket) -> None:
    """The display shows how busy each place is, and the trace has all instances."""
    words = ("--distribute", "actor_learner:actors=1", "--launch", "processes")
    out = hocket.well("train", "ppo", *SHORT, *words, "--trace", "trace.json", "--name", "apart")
    assert re.search(r"actor \d+% busy, learner \d+% busy", out)
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"actor/0", "learner/0"}
    assert {"update", "act, env"} <= {event["name"] for event in events}
    config = json.loads(Path("runs/apart/config.json").read_text())
    assert config["launch"] == "processes" and "trace" not in config
    hocket.well("eval", "apart", "--episodes", "2")


def test_plot_and_record(hocket: Hocket) -> None:
    hocket.well("train", "ppo", *SHORT, "--name", "a", "--quiet")
    hocket.well("train", "ppo", *SHORT, "--seed", "1", "--name", "b", "--quiet")
    assert "(2 seeds" in hocket.well("plot", "a", "runs/b", "--out", "curves.svg")
    assert Path("curves.svg").read_text().startswith("<?xml")
    out = hocket.well("record", "a", "--out", "a.gif", "--max-steps", "12")
    frames = int(out.split()[0])
    with Image.open("a.gif") as film:
        shown = sum(image.info["duration"] for image in ImageSequence.Iterator(film))
    assert 2 <= frames <= 13 and abs(shown - frames * 1000 / 30) <= 10 * frames


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, for commands with a mistake."""
    runs = tmp_path_factory.mktemp("first")
    ppo = PPO(env=make("CartPole-v1"), num_envs=8, length=16, hidden=(8,), minibatches=2)
    library.train(replace(ppo, env_steps=1280), runs=runs, name="first")
    return runs / "first"


FIRST = "first"
MISTAKES = [
    (None, ("trian", "ppo"), "unknown command `trian`. Did you mean `train`?"),
    (None, ("train",), "which algorithm? `hocket train NAME`"),
    (None, ("train", "pppo"), "unknown algorithm `pppo`. Did you mean `ppo`?"),
    (None, ("train", "ppo", "--env", "CartPol-v1"), "Did you mean `CartPole-v1`?"),
    (None, ("train", "ppo", "--env", "CartPole-v1:gravty=1"), "Did you mean `gravity`?"),
    (None, ("train", "ppo", "--env", "CartPole-v1:gravity="), "is no option"),
    (None, ("train", "ppo", "--env", "CartPole-v1:gravity=big"), "of type float (such as 9.8)"),
    (None, ("train", "ppo", "--env", "CartPole-v1:max_steps=x"), "of type int (such as 500)"),
    (
        None,
        ("plan", "ppo", "--distribute", "sliced:share=half"),
        "`share` of the strategy `sliced` must",
    ),
    (
        None,
        ("plan", "ppo", "--distribute", "sliced:direct=2"),
        "of type bool (such as False), found 2",
    ),
    (None, ("train", "ppo", "--env", "gymnax:CartPole-v1:gravity=x"), "such as 9.8"),
    (
        None,
        ("train", "ppo", "--distribute", "anakin:devices=two"),
        "of type int (such as 0), found 'two'",
    ),
    (None, ("train", "ppo", "--name", ""), "cannot be the name of a folder"),
    (None, ("train", "ppo", "--env", "nowhere.module:Env"), "there is no module `nowhere.module`"),
    (None, ("train", "ppo", "--env", "math:pi"), "is not an environment"),
    (None, ("train", "ppo", "--distribute", "anakinn"), "Did you mean `anakin`?"),
    (None, ("train", "ppo", "--distribute", "anakin:devices=9"), "asked for 9 devices, but the"),
    (None, ("train", "ppo", "--distribute", "anakin:device=1"), "Did you mean `devices`?"),
    (None, ("train", "ppo", "--distribute", "math:floor"), "is not a strategy"),
    (None, ("train", "ppo", "--launch", "proceses"), "Did you mean `processes`?"),
    (None, ("plan", "ppo", "--distribute", "actor_learner:actors=3"), "equally by 3 replicas"),
    (None, ("plan", "dqn", "--distribute", "data_parallel"), "cannot run as replicas: `replay"),
    (None, ("plan", "ppo", "--distribute", "actor_learner:backend=fortran"), "unknown backend"),
    (None, ("plan", "ppo", "--distribute", "actor_learner:learners=0"), "learners=0: there are"),
    (
        None,
        ("plan", "ppo", "--distribute", "anakin", "--cluster", "loopback:2"),
        "on a cluster each replica is a process",
    ),
    (None, ("plan", "ppo", "--cluster", "threads"), "`threads` is no cluster"),
    (None, ("plan", "ppo", "--search", "--cluster", "loopback:2"), "has no effect with --search"),
    (None, ("plan", "ppo", "--ship", "mine"), "`ship` (mine) has no effect without a cluster"),
    (None, ("plan", "ppo", "--svg", "/dev/null/plan.svg"), "File exists: '/dev/null'"),
    (None, ("train", "ppo", "--lerning-rate", "1"), "--learning-rate"),
    (None, ("train", "ppo", "--learning-rate", "fast"), "--learning-rate"),
    (None, ("train", "ppo", "--seeds", "0"), "seeds must be at least 1"),
    (None, ("train", f"{ROOT}/examples/sac.py:SAX"), "unknown name `SAX`"),
    (None, ("train", f"{ROOT}/examples/sac.py"), "/examples/sac.py`? Write "),
    (None, ("train", "--quiet", "ppo"), "`hocket train NAME`, then its flags"),
    (None, ("train", "ppo", "--env-steps", "0"), "`env_steps` of PPO must be at least 1, found 0"),
    (None, ("train", "ppo", "--epochs", "-1"), "`epochs` of PPO must be at least 1, found -1"),
    (None, ("train", "a2c", "--length", "0"), "`length` of A2C must be at least 1, found 0"),
    (None, ("train", "dqn", "--hidden", "8", "0"), "`hidden` of DQN must be at least 1, found"),
    (
        None,
        ("plan", "ppo", "--distribute", "sliced:slices"),
        "without a value: write slices=value",
    ),
    (None, ("train", "nowhere.py:SAC"), "there is no file `nowhere.py` here"),
    (None, ("train", "math:floor"), "is not a dataclass"),
    (None, ("train", "dqn", "--env", "Pendulum-v1"), "DQN needs one discrete action"),
    (None, ("train", "ppo", "--resume"), "there is no run of ppo on CartPole-v1 in runs to resume"),
    (None, ("train", "ppo", "--config", "x.json"), "leave `ppo` out"),
    (None, ("train", "--config", "x.json"), "x.json cannot be read as a configuration"),
    (None, ("eval", "nothing"), "there is no run `nothing`"),
    (FIRST, ("eval", "frist"), "unknown run `frist` in runs. Did you mean `first`?"),
    (FIRST, ("eval", "first", "--checkpoint", "7"), "there is no checkpoint 7"),
    (
        FIRST,
        ("eval", "first", "--checkpoint", "last"),
        "unknown checkpoint `last`. Did you mean `latest`?",
    ),
    (FIRST, ("eval", "first", "--episodes", "0"), "episodes must be at least 1"),
    (FIRST, ("plot", "first", "--metric", "return_men"), "Did you mean `return_mean`"),
    (FIRST, ("record", "first", "--out", "film.avi"), "ends in .mp4 or .gif"),
    (
        FIRST,
        ("train", "ppo", *SHORT, "--name", "first", "--resume", "--learning-rate", "0.5"),
        "runs/first cannot be resumed with another configuration: learning_rate was 0.002 and is",
    ),
]


@pytest.mark.parametrize(
    ("before", "arguments", "message"), MISTAKES, ids=[" ".join(m[1])[-40:] for m in MISTAKES]
)
def test_mistakes_get_a_sentence(
    hocket: Hocket,
    before: str | None,
    arguments: tuple[str, ...],
    message: str,
    request: pytest.FixtureRequest,
) -> None:
    if before:
        shutil.copytree(request.getfixturevalue(before), f"runs/{before}")
    done = hocket(*arguments)
    assert done.code == 2, done
    assert message in done.err
    assert "Traceback" not in done.err


def test_debug_shows_the_traceback(hocket: Hocket) -> None:
    with pytest.raises(ValueError, match="unknown algorithm"):
        hocket("train", "pppo", "--debug")


@pytest.mark.parametrize(
    ("how", "where"), [(signal.SIGINT, "anakin"), (signal.SIGTERM, "sliced:slices=2,devices=1")]
)
def test_ctrl_c_keeps_what_there_is(how: signal.Signals, where: str, tmp_path: Path) -> None:
    """So does SIGTERM, which a scheduler sends to all processes of a run."""
    command = [sys.executable, "-m", "hocket", "train", "ppo", *SMALL, "--name", "long"]
    command += ["--env-steps", "20000000", "--distribute", where]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    file = tmp_path / "runs/long/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
        assert run.poll() is None
        time.sleep(0.1)
    for process in [*children(run.pid), run.pid] if how == signal.SIGTERM else [run.pid]:
        os.kill(process, how)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted; --resume continues it" in out and "saved in runs/long" in out
    about = json.loads((tmp_path / "runs/long/summary.json").read_text())
    assert not about["finished"] and 0 < about["env_steps"] < 20_000_000


def children(parent: int) -> list[int]:
    """Return the children of a process."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def test_seeds_share_the_cores_of_a_cpu(tmp_path: Path) -> None:
    """They do so even if making the environment starts JAX, as gymnax does."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "hocket", "train", "ppo", *SHORT, "--quiet"]
    flags = ["--seeds", "4", "--env", "gymnax:CartPole-v1", "--name", "four"]
    subprocess.run([*command, *flags], cwd=tmp_path, env=env, check=True)
    about = json.loads((tmp_path / "runs/four/summary.json").read_text())
    cores = about["hardware"]["cores"]
    assert len(about["hardware"]["devices"]) == np.gcd(4, cores) and len(about["each"]) == 4


@pytest.mark.usefixtures("forks")
def test_seeds_on_slices_leave_the_cores_to_them(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do so if `sliced` comes from a flag with `=` or from another run's configuration."""
    shared: list[int] = []
    monkeypatch.setattr("hocket.cli.train.share_cores", shared.append)
    flags = ("train", "ppo", *SHORT, "--seeds=2", "--quiet")
    hocket.well(*flags, "--distribute=sliced:slices=1,devices=1", "--name=two")
    assert not shared
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": ""}
    again = ["train", "--config", "runs/two/config.json", "--name", "again", "--quiet"]
    subprocess.run([sys.executable, "-m", "hocket", *again], env=env, check=True)
    assert len(summary(Path("runs/again"))["hardware"]["devices"]) == 1
    hocket.well(*flags, "--name=three")
    assert shared == [2]


def test_whoever_only_looks_leaves_an_accelerators_memory(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    hocket.well("plan", "ppo")
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    assert [new_folder(tmp_path, "ppo on X", None).name for _ in range(3)] == [
        "ppo-X-1", "ppo-X-2", "ppo-X-3",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"there is already a run in .*mine"):
        [new_folder(tmp_path, "ppo on X", "mine") for _ in range(2)]


def test_plot_of_a_run_with_evaluations(hocket: Hocket) -> None:
    hocket.well("train", "ppo", *SHORT, "--eval-every", "128", "--eval-episodes", "2", "--quiet",
                "--name", "often")  # fmt: skip
    hocket.well("plot", "often", "--metric", "kl", "--out", "kl.png")
    assert "at the end" in hocket.well("plot", "often", "--metric", "eval_return_mean")


def test_the_python_api_says_what_is_wrong(tmp_path: Path) -> None:
    algorithm = PPO(env=make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"unknown setting `sed`. Did you mean `seed`"):
        library.train(algorithm, sed=1)
    with pytest.raises(ValueError, match="needs its strategy as text"):
        library.train(algorithm, distribute=anakin())
    small = PPO(env=make("CartPole-v1"), num_envs=8, length=16, minibatches=2, env_steps=128)
    outcome = library.train(small, runs=str(tmp_path / "text"), name="mine")
    line = (
        rf"(no episode ended|return [\d.]+) after 128 steps, [\d,]+ steps/s: {tmp_path}/text/mine"
    )
    assert re.fullmatch(line, str(outcome))
    assert repr(outcome) == f"<Outcome of ppo on CartPole-v1: {outcome}>"
    shown = repr(library.load(tmp_path / "text/mine"))  # without the arrays of the state
    assert "PPO(" in shown and "Array(" not in shown and len(shown) < 3000
    with pytest.raises(ValueError, match="unknown checkpoint `newest`"):
        library.load(tmp_path / "text/mine", checkpoint="newest")  # pyright: ignore[reportArgumentType]
    wide = replace(small, hidden=(32,))
    with pytest.raises(ValueError, match="does not fit this algorithm: its array `learner"):
        library.load(tmp_path / "text/mine", algorithm=wide)
