"""A run that fails says who failed and how within seconds, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import pytest
from jax.experimental import io_callback

import hocket
from hocket import Plan, fragment
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.runtime.distributed import Split
from hocket.runtime.launch import watch
from hocket.runtime.launch.watch import Deadlock, InstanceError
from hocket.runtime.observe.status import RECEIVING, WORKING
from hocket.strategies import resolve
from hocket.training.loop import carry_out, first_key, make_executor
from tests.faults import (
    Faulty,
    Fickle,
    Misprojected,
    all_gone,
    cpu_seconds,
    left_behind,
    two,
    wait_until,
    without_parameters,
    workers,
)
from tests.toys import Toy

ROOT = Path(__file__).parents[2]
SOON = 5.0
"""How long "within seconds" may take on a busy machine."""

Launch = Literal["threads", "processes"]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_behind()
    yield
    assert left_behind() <= before


class Killer(threading.Thread):
    """Kills an instance as soon as a condition holds."""

    def __init__(self, victim: str, condition: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.victim, self.condition, self.at = victim, condition, 0.0
        self.pids: dict[str, int] = {}
        self.start()

    def run(self) -> None:
        wait_until(self.condition)
        self.pids = workers()
        self.at = time.monotonic()
        os.kill(self.pids[self.victim], signal.SIGKILL)


def check_death(executor: Split, error: BaseException, killer: Killer) -> None:
    """Check that the error came soon and names the victim, all have ended, and it stays failed."""
    assert time.monotonic() - killer.at < SOON
    pid = killer.pids[killer.victim]
    assert str(error).startswith(
        f"the instance `{killer.victim}` failed: process {pid} was killed by SIGKILL."
    )
    assert all_gone(killer.pids)
    first = jax.random.key(0)
    for again in (lambda: executor.run(1), lambda: executor.start(first)):
        with pytest.raises(InstanceError) as found:
            again()
        assert found.value is error


def phases(executor: Split) -> dict[str, Callable[[], Any]]:
    """Return conditions under which to kill an instance, by what it is doing then."""
    actor, learner = range(2)
    now = executor.crew.statuses

    def compiles() -> bool:  # it has received the parameters, and not come to an end yet
        return bool(now["moves"][actor] == 1 and now["phase"][actor] == WORKING)

    def waits() -> bool:  # for the actor, whose environment sleeps
        asleep = now["iteration"][actor] == 1 and now["phase"][actor] == WORKING
        waiting = now["iteration"][learner] == 1 and now["phase"][learner] == RECEIVING
        return bool(asleep and waiting)

    return {"starts": workers, "compiles": compiles, "computes": waits, "waits": waits}


@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        ("starts", "actor/0"),
        ("compiles", "actor/0"),
        ("computes", "actor/0"),
        ("waits", "learner/0"),
    ],
)
def test_an_instance_is_killed_while_it(phase: str, victim: str) -> None:
    algorithm = Faulty(ballast=bytes(2**20) if phase == "starts" else b"")
    plan = hocket.plan(algorithm, distribute=two, launch="processes")
    executor = make_executor(plan, 100)
    assert isinstance(executor, Split)
    killer = Killer(victim, phases(executor)[phase])
    with pytest.raises(InstanceError) as found:
        list(carry_out(executor, 100, first_key(0, None)))
    check_death(executor, found.value, killer)


def test_an_instance_is_killed_while_its_state_is_fetched() -> None:
    reports = hocket.iterate(Toy(), distribute=two, launch="processes")
    report = next(reports)
    for pid in workers().values():  # none can answer before, nor end because it is told to
        os.kill(pid, signal.SIGSTOP)
    asked = time.monotonic()
    killer = Killer("learner/0", lambda: time.monotonic() > asked + 0.2)
    with pytest.raises(InstanceError) as found:
        _ = report.state
    assert isinstance(report.executor, Split)
    check_death(report.executor, found.value, killer)
    for again in (lambda: report.state, lambda: next(reports)):
        with pytest.raises(InstanceError, match="`learner/0` failed"):
            again()


def test_a_replica_is_killed_and_the_other_waits_for_its_mean() -> None:
    reports = hocket.iterate(Toy(), distribute="data_parallel", launch="processes")
    report, pids = next(reports), workers()
    assert sorted(pids) == ["replica/0", "replica/1"] and report.iteration == 1
    os.kill(pids["replica/1"], signal.SIGKILL)
    with pytest.raises(InstanceError, match=r"^the instance `replica/1` failed: process .*SIGKILL"):
        next(reports)
    assert all_gone(pids)


@pytest.mark.parametrize("victim", ["slice/0", "slice/3"])  # a leader, and one who has one
def test_a_slice_is_killed_while_others_wait_in_two_steps(victim: str) -> None:
    """The others wait for it in different groups. None of them waits for ever."""

    def two_by_two(graph: Graph, cluster: Cluster) -> Plan:
        return resolve("sliced:slices=2,reduce=hier")(graph, Cluster(cluster.devices[:2]))

    reports = hocket.iterate(Toy(), distribute=two_by_two)
    report, pids = next(reports), workers()
    assert len(pids) == 4 and report.executor.reductions()["slice"].chosen == "hier"
    os.kill(pids[victim], signal.SIGKILL)
    with pytest.raises(InstanceError, match=rf"^the instance `{victim}` failed: .*SIGKILL"):
        next(reports)
    assert all_gone(pids)


def test_an_instance_ends_by_itself(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    leaving = Faulty(fault="exit", seconds=2 * SOON)
    with pytest.raises(
        InstanceError, match=r"^the instance `actor/0` failed: process \d+ ended with code 3\."
    ):
        hocket.run(leaving, iterations=9, distribute=two, launch="processes")
    now, words = time.monotonic(), capfd.readouterr().out.split()
    assert words[:3] == ["the", "actor", "leaves"]  # what it printed is not lost
    os.kill(int(words[3]), signal.SIGKILL)
    assert now - float(words[-1]) < SOON


def test_another_program_in_another_process() -> None:
    with pytest.raises(
        InstanceError,
        match=r"(?s)^the instance `\w+/0` failed:\nTraceback.*Fickle is another graph in this "
        r"process \(\w+\) than in the one that started it \(\w+\): does it depend",
    ):
        next(hocket.iterate(Fickle(home=os.getpid()), distribute=two, launch="processes"))


class Unpicklable(Toy):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a lock")


def test_an_algorithm_that_cannot_be_sent() -> None:
    with pytest.raises(
        hocket.PlanError, match=r"^Unpicklable cannot be sent .*: cannot pickle a lock.*threads"
    ):
        hocket.run(Unpicklable(), iterations=1, distribute=two, launch="processes")


class Slow(Toy):
    """An algorithm whose learner fails at once, while its environment is busy."""

    released = threading.Event()

    def step(self, state: Any) -> Any:
        x = self.env(state.x, self.act(state.w, state.x), state.keys)
        w, key, loss = self.update(state.w, state.key, state.x)
        return state._replace(x=x, w=w, key=key), {"loss": loss, "x": x.sum(-1)}

    def noise(self, x: Any, keys: Any) -> Any:
        return io_callback(self.wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def wait(self, x: Any) -> Any:
        self.released.wait(300)
        return x

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w, key, io_callback(self.fail, jax.ShapeDtypeStruct((), w.dtype), w)

    def fail(self, w: Any) -> Any:
        raise RuntimeError("the learner is on fire")


def test_a_thread_that_failed_does_not_wait_for_the_others() -> None:
    start = time.monotonic()
    with pytest.raises(InstanceError, match=r"(?s)^the instance `learner/0` failed:.*on fire"):
        hocket.run(Slow(), iterations=9, distribute=two)
    Slow.released.set()
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_a_deadlock_says_who_waits_for_whom(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner sends no parameters, and waits for samples that need them."""
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    if launch == "threads":  # elsewhere the algorithm sees to it, when it arrives there
        monkeypatch.setattr("hocket.core.plan.data.project", without_parameters)
    with pytest.raises(Deadlock) as found:
        hocket.run(Misprojected(), iterations=9, distribute=two, launch=launch)
    assert str(found.value).splitlines() == [
        "the instances wait for each other, and none can go on:",
        "  actor/0 waits for w from learner/0, in iteration 0",
        "  learner/0 waits for x from actor/0, in iteration 0",
    ]


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_slow_is_not_stuck(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.3)
    monkeypatch.setattr("tests.faults._calls", iter(range(1, 99)))
    seen: list[hocket.Report] = []
    slow = Faulty(seconds=1.0)
    hocket.run(slow, iterations=2, distribute=two, launch=launch, watch=seen.append)
    actor, learner = seen[-1].places
    assert actor.busy > 0.5 and learner.waits["actor"] > 0.5  # of a second: also told when well


def test_a_pause_of_whoever_looks_is_not_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and `fg` nothing has moved for an hour, which does not mean that it is stuck."""
    plan = hocket.plan(Toy(), distribute=two)
    statuses = Split(plan).crew.statuses
    statuses["phase"] = RECEIVING
    clock = iter([0.0, 3600.0, 3601.0, 3604.5, 3605.5, 3606.5, 3607.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    watching = watch.DeadlockWatch(plan, statuses)
    for _ in range(5):
        watching.look()
    with pytest.raises(Deadlock):
        watching.look()


def start(*command: str, folder: Path) -> subprocess.Popen[str]:
    """Start a user's program in a process group of its own, as a shell does."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


# Without a main guard, and with an algorithm of its own. After the first iteration the environment
# computes for ever, the learner sleeps for ever, and the actor waits for them.
SCRIPT = """
import time
import jax
import jax.numpy as jnp
from jax.experimental import io_callback
import hocket
from hocket import Place, Plan, fragment
from tests.toys import Toy

def apart(graph, cluster):
    return Plan(graph, [Place(name, [name]) for name in ("env", "act", "learn")])

class Stuck(Toy):
    def init(self, key, num_envs):
        return super().init(key, num_envs)._replace(x=jnp.zeros((num_envs, 4)), w=jnp.zeros(4))

    @fragment
    def env(self, x):
        count = jnp.where(x.sum() > 0, 2**31 - 1, 1)
        return jax.lax.fori_loop(0, count, lambda _, x: jnp.sin(x) + 1.0, x)

    @fragment(role="learn")
    def update(self, w):
        def sleep(w):
            time.sleep(600 * (w[0] > 0))
            return w + 1
        return io_callback(sleep, jax.ShapeDtypeStruct(w.shape, w.dtype), w)

    def step(self, state):
        x, w = self.env(state.x), self.update(state.w)
        return state._replace(x=x, w=w), {"action": self.act(w, x)}

for report in hocket.iterate(Stuck(), iterations=9, distribute=apart, launch="processes"):
    print("ready", flush=True)
"""


@pytest.mark.parametrize("when", ["they start", "they are busy"])
def test_workers_end_with_the_process_that_started_them(when: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start("script.py", folder=tmp_path)
    assert script.stdout and script.stderr
    pids = wait_until(lambda: len(found := workers(script.pid)) == 3 and found)
    if when == "they are busy":
        assert script.stdout.readline() == "ready\n", script.stderr.read()
        before = cpu_seconds(pids["env/0"])
        wait_until(lambda: cpu_seconds(pids["env/0"]) > before + 0.2)
    script.kill()
    script.wait()
    # One that has only begun to import notices when it is done with that.
    wait_until(lambda: all_gone(pids), SOON if when == "they are busy" else 60.0)
    assert script.stderr.read() == ""  # nothing is wrong with them
    script.stdout.close()
    script.stderr.close()


# An algorithm of a file; whether its learner stalls or fails is decided by files beside it.
MINE = """
import time
from dataclasses import dataclass
from pathlib import Path
import jax
from jax.experimental import io_callback
from hocket import fragment, make
from hocket.envs import Env
from tests.toys import Toy

@dataclass(frozen=True)
class Mine(Toy):
    env: Env = make("CartPole-v1")  # in name only
    env_steps: int = 400_000

    @fragment(role="env")
    def move(self, x, action):
        return 0.9 * x + 0.1 * action[:, None]

    @fragment(role="learn")
    def update(self, w, xs):
        return io_callback(look, jax.ShapeDtypeStruct(w.shape, w.dtype), 0.9 * w + xs.mean())

    def step(self, state):
        x = self.move(state.x, self.act(state.w, state.x))
        w = self.update(state.w, x)
        return state._replace(x=x, w=w), {"w": w.sum()}

def look(w):
    time.sleep(0.002)
    if Path("stall").exists():
        Path("stalled").touch()
        time.sleep(600)
    if Path("burn").exists():
        raise RuntimeError("the learner is on fire")
    return w
"""

TRAIN = ("-m", "hocket", "train", "mine.py:Mine", "--distribute", "actor_learner:actors=1",
         "--launch", "processes", "--name", "mine")  # fmt: skip


def test_the_command_line_tells_who_failed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "burn").touch()
    run = start(*TRAIN, folder=tmp_path)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1, err
    first, second, *rest = err.splitlines()
    assert first == "hocket: the instance `learner/0` failed:"
    assert second == "Traceback (most recent call last):"
    assert "RuntimeError: the learner is on fire" in rest
    assert err.count("cli.py") == 0  # where the run was told of it is of no interest


def test_ctrl_c_once_and_twice(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    records = tmp_path / "runs/mine/metrics.jsonl"

    def begin(*more: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
        size = _size(records)
        run = start(*TRAIN, *more, folder=tmp_path)
        wait_until(lambda: run.poll() is not None or _size(records) > size)
        return run, workers(run.pid)

    run, pids = begin()
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert len(pids) == 2 and all_gone(pids)
    assert "interrupted; --resume continues it" in out and err == ""
    steps = json.loads((tmp_path / "runs/mine/summary.json").read_text())["env_steps"]
    assert 0 < steps < 400_000

    run, pids = begin("--resume")
    (tmp_path / "stall").touch()
    wait_until((tmp_path / "stalled").exists)
    os.killpg(run.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        run.communicate(timeout=0.5)  # it lets the iteration end, which takes ten minutes
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=SOON)
    assert run.returncode == 130, err
    assert len(pids) == 2 and all_gone(pids)
    assert f"resumed after {steps:,} steps" in out
    assert hocket.load(tmp_path / "runs/mine").iteration * 8 >= steps


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
