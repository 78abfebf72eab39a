"""Killed runs resume exactly; damaged checkpoints and a full disk are reported."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.front import Hocket

import hocket as library
import hocket.algorithms as algorithms
from hocket import make
from hocket.report.loggers import About
from hocket.report.loggers.jsonl import Jsonl
from hocket.runtime.channels.late import late_names
from hocket.runtime.checkpoint import Checkpoints
from hocket.system.signals import Abandoned, Deferred
from hocket.testing import difference

ROOT = Path(__file__).parents[2]
# One device of the four: each would have a part of eight environments.
ALONE = ("--distribute", "anakin:devices=1")
PPO = (
    "ppo", "--num-envs", "8", "--length", "16", "--hidden", "8", "--minibatches", "2", *ALONE,
)  # fmt: skip
PPO_20 = str(8 * 16 * 20)
PPO_ALGORITHM = algorithms.PPO(env=make("CartPole-v1"), num_envs=8, length=16, hidden=(8,))
CASES = {
    "ppo": PPO,
    "recurrent-ppo": ("recurrent-ppo", "--num-envs", "8", "--length", "16", "--hidden", "8",
                      "--memory", "8", "--minibatches", "2", *ALONE),
    "dqn": ("dqn", "--num-envs", "8", "--length", "16", "--hidden", "8", "--capacity", "4096",
            "--min-size", "256", "--batch-size", "16", *ALONE),
}  # fmt: skip
CASES["dqn with a replay service"] = (*CASES["dqn"], "--distribute", "apex:lag=0,actors=1")


def start(*arguments: str, cwd: Path, flags: str = "") -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    env["XLA_FLAGS"] = f"{env['XLA_FLAGS']} {flags}"
    command = [sys.executable, "-m", "hocket", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True)


def kill_after_checkpoint(run: subprocess.Popen[str], folder: Path, first: str) -> None:
    deadline = time.monotonic() + 200
    while not (folder / "checkpoints" / first).exists():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.communicate()


@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_goes_on_exactly(name: str, hocket: Hocket, tmp_path: Path) -> None:
    """A run killed after 20 iterations and resumed equals one of 40, and so do its records."""
    flags = (*CASES[name], "--env-steps", str(8 * 16 * 40), "--save-every", PPO_20)
    hocket.well("train", *flags, "--name", "whole", "--quiet")
    # Evaluating after every iteration makes it slow enough to be killed before it ends.
    slow = ("--eval-every", "128", "--eval-episodes", "500")
    run = start("train", *flags, *slow, "--name", "cut", cwd=tmp_path)
    kill_after_checkpoint(run, tmp_path / "runs/cut", "20")
    assert run.returncode == -signal.SIGKILL
    out = hocket.well("train", "--name", "cut", "--resume", "--eval-episodes", "4")
    assert "note: resumed after 2,560 steps" in out
    whole, cut = library.load("runs/whole"), library.load("runs/cut")
    assert whole.iteration == cut.iteration == 40
    assert difference(whole.state, cut.state) == 0.0
    assert difference(whole.state, library.load("runs/whole", checkpoint=20).state) > 0.0
    assert _numbers("runs/whole") == _numbers("runs/cut")


def _numbers(folder: str) -> list[Any]:
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    return [row for row in rows if "episodes" in row]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train for 40 iterations, with checkpoints after 20 and 40."""
    forty = replace(PPO_ALGORITHM, minibatches=2, env_steps=8 * 16 * 40)
    folder = tmp_path_factory.mktemp("trained")
    library.train(forty, runs=folder, name="run", save_every=int(PPO_20), distribute=ALONE[1])
    return folder / "run"


@pytest.fixture
def two_checkpoints(trained: Path, hocket: Hocket) -> Path:
    """Copy that run, for a test to damage."""
    return Path(shutil.copytree(trained, "runs/run"))


def test_a_finished_run_is_left_as_it_is(hocket: Hocket) -> None:
    flags = ("train", *CASES["ppo"], "--env-steps", PPO_20, "--name", "done", "--quiet")
    hocket.well(*flags)
    before = Path("runs/done/config.json").read_text()
    hocket.well(*flags, "--resume", "--distribute", "actor_learner:actors=1")
    assert Path("runs/done/config.json").read_text() == before


def test_a_run_that_never_began_can_be_another(hocket: Hocket) -> None:
    """A folder without checkpoints may be resumed with another configuration."""
    folder = Path("runs/mended")
    flags = ("train", *CASES["ppo"], "--env-steps", PPO_20, "--name", "mended", "--quiet")
    hocket.well(*flags)
    shutil.rmtree(folder / "checkpoints")
    hocket.well(*flags, "--resume", "--learning-rate", "0.5", "--seeds", "2")
    assert library.load("runs/mended").config["algorithm"]["learning_rate"] == 0.5
    told = sorted(path.parent.name for path in folder.glob("**/metrics.jsonl"))
    assert told == ["seed-0", "seed-1"]  # and no file of the first attempt


def test_a_damaged_checkpoint_is_refused_by_name(two_checkpoints: Path, hocket: Hocket) -> None:
    before = library.load(two_checkpoints, checkpoint=20)
    whole = library.load(two_checkpoints)
    for data in (two_checkpoints / "checkpoints/40/state").rglob("d/*"):
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 0x10
        data.write_bytes(content)
    loaded = library.load(two_checkpoints)
    assert loaded.iteration == 20 and difference(loaded.state, before.state) == 0.0
    assert re.match(r"checkpoint 40 is damaged", loaded.notes[0])
    assert "checkpoint 40 is damaged" in hocket.well("eval", "run")
    out = hocket.well("train", "--name", "run", "--resume")
    assert "note: checkpoint 40 is damaged" in out and "using the one before it" in out
    assert difference(library.load(two_checkpoints).state, whole.state) == 0.0


def test_a_changed_number_is_found(two_checkpoints: Path) -> None:
    """A wrong number in a sound file is found because its array has another fingerprint."""
    about = two_checkpoints / "checkpoints/40/about/metadata"
    content = json.loads(about.read_text())
    name = next(n for n in content["fingerprint"] if n.endswith("kernel"))
    content["fingerprint"][name] ^= 1
    about.write_text(json.dumps(content))
    run = library.load(two_checkpoints)
    assert run.iteration == 20 and f"`{name}` has changed" in run.notes[0]


def test_a_half_written_checkpoint_is_refused_by_name(
    two_checkpoints: Path, hocket: Hocket
) -> None:
    whole = library.load(two_checkpoints)
    checkpoints = two_checkpoints / "checkpoints"
    half = checkpoints / "40.orbax-checkpoint-tmp"
    (checkpoints / "40").rename(half)
    (half / "commit_success.txt").unlink(missing_ok=True)
    shutil.rmtree(half / "about")
    out = hocket.well("train", "--name", "run", "--resume")
    assert "note: checkpoint 40 is half-written: using the one before it" in out
    assert "resumed after 2,560 steps" in out
    assert difference(library.load(two_checkpoints).state, whole.state) == 0.0


def test_only_a_half_written_one(two_checkpoints: Path, hocket: Hocket) -> None:
    whole = library.load(two_checkpoints)
    shutil.rmtree(two_checkpoints / "checkpoints/40")
    (two_checkpoints / "checkpoints/20").rename(
        two_checkpoints / "checkpoints/20.orbax-checkpoint-tmp"
    )
    out = hocket.well("train", "--name", "run", "--resume")
    assert "note: checkpoint 20 is half-written" in out and "starts from the beginning" in out
    assert difference(library.load(two_checkpoints).state, whole.state) == 0.0


def test_no_checkpoint_is_left(two_checkpoints: Path, hocket: Hocket) -> None:
    for state in two_checkpoints.glob("checkpoints/*/state"):
        shutil.rmtree(state)
    done = hocket("train", "--name", "run", "--resume")
    assert done.code == 2 and "no whole checkpoint in" in done.err
    assert "checkpoint 40 is damaged" in done.err and "checkpoint 20 is damaged" in done.err


def test_one_device_then_two(hocket: Hocket) -> None:
    """A checkpoint that was made on one device continues on two."""
    whole = (*PPO, "--env-steps", str(8 * 16 * 23), "--save-every", PPO_20, "--quiet")
    hocket.well("train", *whole, "--distribute", "anakin:devices=1", "--name", "one")
    hocket.well("train", *whole, "--distribute", "anakin:devices=1", "--name", "two")
    shutil.rmtree("runs/two/checkpoints/23")
    hocket.well("train", *whole, "--distribute", "anakin:devices=2", "--name", "two", "--resume")
    one, two = library.load("runs/one"), library.load("runs/two")
    assert one.iteration == two.iteration == 23
    moved = difference(one.state, library.load("runs/one", checkpoint=20).state)
    distance = difference(one.state.learner.params, two.state.learner.params)
    assert distance <= 1e-5 < 100 * 1e-5 < moved


def test_a_split_plan_then_a_fused_one(hocket: Hocket) -> None:
    Path("apart.py").write_text(
        "import hocket\n"
        "from hocket import Place, Plan\n"
        "@hocket.strategy\n"
        "def two_devices(graph, cluster):\n"
        "    first, second, *_ = cluster.devices\n"
        "    return Plan(graph, [Place('actor', ('env', 'act'), [first]),\n"
        "                        Place('learner', ('learn',), [second])])\n"
    )
    whole = (*PPO, "--env-steps", str(8 * 16 * 23), "--save-every", PPO_20, "--quiet")
    hocket.well("train", *whole, "--distribute", "anakin:devices=1", "--name", "fused")
    hocket.well("train", *whole, "--distribute", "apart.py:two_devices", "--name", "split")
    shutil.rmtree("runs/split/checkpoints/23")
    split = library.load("runs/split")
    assert difference(split.state, library.load("runs/fused", checkpoint=20).state) < 1e-3
    hocket.well("train", *whole, "--distribute", "anakin", "--name", "split", "--resume")
    assert library.load("runs/split").iteration == 23


def test_a_checkpoint_that_cannot_be_written(hocket: Hocket) -> None:
    """A write fails in the middle of a checkpoint."""
    flags = ("train", *PPO, "--hidden", "64", "64", "--env-steps", str(8 * 16 * 40))
    flags = (*flags, "--save-every", PPO_20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    hocket.well(*flags, "--name", "roomy", "--quiet")  # caches the compiled programs
    resource.setrlimit(resource.RLIMIT_FSIZE, (24 * 1024, before[1]))
    try:
        done = hocket(*flags, "--name", "full", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.code == 2, done
    assert "checkpoint 20 could not be written" in done.err and "File too large" in done.err
    assert "as no earlier checkpoint exists" in done.err and "--resume" in done.err
    assert "Traceback" not in done.err
    out = hocket.well("train", "--name", "full", "--resume")
    assert "no whole checkpoint" not in out
    full, roomy = library.load("runs/full"), library.load("runs/roomy")
    assert difference(full.state, roomy.state) == 0.0


def test_a_record_that_cannot_be_written(hocket: Hocket) -> None:
    flags = ("train", *PPO, "--env-steps", str(8 * 16 * 40), "--quiet")
    hocket.well(*flags, "--name", "roomy")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        done = hocket(*flags, "--name", "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.code == 2 and "the logger `jsonl` failed: OSError" in done.err, done
    assert "File too large" in done.err


def can_mount() -> bool:
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, check=False).returncode


@pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
def test_a_full_disk(tmp_path: Path) -> None:
    train = f"{sys.executable} -m hocket train {' '.join(PPO)} --env-steps 5120 --quiet"
    script = f"mount -t tmpfs -o size=40k none {tmp_path} && cd {tmp_path} && exec {train}"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_the_loaded_policy_acts_as_the_trained_one(two_checkpoints: Path) -> None:
    run = library.load(two_checkpoints)
    trained = library.run(run.algorithm, iterations=40, distribute=ALONE[1])
    assert difference(run.state, trained.state) == 0.0
    keys = jax.random.split(jax.random.key(1), 32)
    env: Any = run.env
    obs = jax.vmap(lambda key: env.reset(key)[1])(keys)
    loaded = [int(run.policy(o)[0]) for o in obs]
    assert loaded == [int(trained.policy(o)[0]) for o in obs]
    assert len(set(loaded)) == 2  # its actions do depend on observations


def test_seeds_and_evaluations_go_on_exactly(hocket: Hocket) -> None:
    flags = (*PPO, "--seeds", "2", "--env-steps", str(8 * 16 * 40), "--save-every", PPO_20)
    flags = (*flags, "--eval-every", "1280", "--eval-episodes", "4", "--quiet")
    hocket.well("train", *flags, "--name", "whole")
    shutil.copytree("runs/whole", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/40")
    hocket.well("train", *flags, "--name", "cut", "--resume")
    for agent in range(2):
        whole, cut = (library.load(f"runs/{name}", agent=agent) for name in ("whole", "cut"))
        assert whole.iteration == cut.iteration == 40
        assert difference(whole.state, cut.state) == 0.0
        assert _numbers(f"runs/whole/seed-{agent}") == _numbers(f"runs/cut/seed-{agent}")


def test_records_survive_a_kill_while_resuming(two_checkpoints: Path) -> None:
    before = (two_checkpoints / "metrics.jsonl").read_text()
    progress = library.Outcome(two_checkpoints, "", 1, 5120)
    logger = Jsonl()
    logger.begin(About("", two_checkpoints, {0: two_checkpoints}, {}, progress, last_step=5120))
    assert (two_checkpoints / "metrics.jsonl").read_text() == before  # no row is lost
    logger.end({})


def test_a_second_ctrl_c_keeps_nothing_that_is_in_no_order() -> None:
    with Deferred() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.seen
        with pytest.raises(Abandoned):
            signal.raise_signal(signal.SIGINT)

    def press_twice(report: library.Report) -> None:
        raise Abandoned

    with pytest.raises(Abandoned):
        library.run(PPO_ALGORITHM, iterations=4, watch=press_twice)


def test_the_best_is_kept(hocket: Hocket) -> None:
    """The best evaluated checkpoint is kept; saves between evaluations have no score."""
    flags = ("--env-steps", str(8 * 16 * 40), "--save-every", str(8 * 16 * 5), "--keep", "2")
    hocket.well("train", *PPO, *flags, "--eval-every", str(8 * 16 * 7), "--eval-episodes", "8",
                "--name", "kept", "--quiet")  # fmt: skip
    text = Path("runs/kept/metrics.jsonl").read_text()
    rows = [r for r in map(json.loads, text.splitlines()) if "eval_return_mean" in r]
    best = max(rows, key=lambda r: r["eval_return_mean"])
    there = {int(p.name) for p in Path("runs/kept/checkpoints").iterdir()}
    assert {35, 40} <= there and len(there) <= 3
    run = library.load("runs/kept", checkpoint="best")
    assert run.iteration == best["iteration"]
    assert run.evaluate().returns.mean() == pytest.approx(best["eval_return_mean"])


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_what_is_late_goes_on_exactly(launch: str, tmp_path: Path) -> None:
    """The values on their way in a late channel are saved with the state."""
    where: dict[str, Any] = {"distribute": "actor_learner:actors=2,lag=2", "launch": launch}
    where["runs"] = tmp_path
    six = replace(PPO_ALGORITHM, env_steps=8 * 16 * 6)
    library.train(six, name="once", save_every=8 * 16 * 3, **where)
    shutil.copytree(tmp_path / "once", tmp_path / "twice")
    shutil.rmtree(tmp_path / "twice/checkpoints/6")  # as if it had been interrupted after three
    assert library.train(six, name="twice", resume=True, **where).notes == [
        f"resumed after {8 * 16 * 3:,} steps"
    ]
    once, twice = (library.load(tmp_path / name).state for name in ("once", "twice"))
    assert difference(twice, once) == 0.0
    shutil.rmtree(tmp_path / "twice/checkpoints/6")
    where["distribute"] = "actor_learner:actors=2,lag=1"
    notes = library.train(six, name="twice", resume=True, **where).notes
    assert "the checkpoint has no values for this plan's late channels" in notes[-1]


def test_a_run_of_an_earlier_version_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late values were once named by the numbers of transfer, source, target, message and array."""
    where: dict[str, Any] = {"distribute": "actor_learner:actors=2,lag=2", "runs": tmp_path}
    messages = late_names(library.plan(PPO_ALGORITHM, distribute=where["distribute"]))
    earlier = {
        name: "-".join(map(str, (*key, k, j)))
        for key, names in messages.items() for k, message in enumerate(names)
        for j, name in enumerate(message)
    }  # fmt: skip
    save = Checkpoints.save

    def save_as_before(self: Checkpoints, *arguments: Any, late: Any, **more: Any) -> None:
        save(self, *arguments, late={earlier[name]: x for name, x in late.items()}, **more)

    six = replace(PPO_ALGORITHM, env_steps=8 * 16 * 6)
    library.train(six, name="once", **where)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_as_before)
        library.train(six, name="twice", save_every=8 * 16 * 3, **where)
    shutil.rmtree(tmp_path / "twice/checkpoints/6")
    about = json.loads((tmp_path / "twice/checkpoints/3/about/metadata").read_text())
    assert {"late/0-0-0-0-0", "late/0-0-1-1-6"} <= about["shapes"].keys()
    resumed = library.train(six, name="twice", resume=True, **where)
    assert resumed.notes == [f"resumed after {8 * 16 * 3:,} steps"]
    once, twice = (library.load(tmp_path / name).state for name in ("once", "twice"))
    assert difference(twice, once) == 0.0
