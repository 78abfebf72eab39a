"""Instances on other nodes: they start, print and fail as on one, and a lost node ends the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import hocket
from hocket import Plan
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place
from hocket.runtime.distributed import Split
from hocket.runtime.launch import CLUSTERS, LAUNCHERS, ClusterLauncher, cluster_named
from hocket.runtime.launch.watch import InstanceError
from hocket.system.registry import lacking
from hocket.training.loop import carry_out, first_key, make_executor
from tests.faults import Faulty, all_gone, children, is_gone, wait_until, workers
from tests.toys import Toy

pytestmark = [pytest.mark.usefixtures("nothing_is_left"), pytest.mark.xdist_group("nodes")]

LEASE = 2.0
SOON = LEASE + 5.0
"""Seconds within which a run ends after the loss of a node."""


def apart(graph: Graph, cluster: Cluster) -> Plan:
    """Place the actor on the first node and the learner on the last; a strategy for tests."""
    first, *_, last = cluster.devices
    places = (
        Place("actor", ("env", "act"), on=(first,)),
        Place("learner", ("learn",), on=(last,)),
    )
    return Plan(graph, places, launch=cluster.launch or Plan.launch)


def executor_of(algorithm: Toy, nodes: int = 2) -> Split:
    plan = hocket.plan(algorithm, distribute=apart, cluster=f"loopback:{nodes}")
    executor = make_executor(plan, 100, lease=LEASE)
    assert isinstance(executor, Split)
    return executor


def stewards() -> dict[str, int]:
    """Return the stewards that this process has started, by the names of their first instances."""
    return {name: pid for pid in children() for name in sorted(workers(pid))[:1]}


@pytest.fixture
def asleep() -> Iterator[tuple[Split, list[BaseException], threading.Thread]]:
    """A run on two nodes whose actor sleeps in its second iteration, and the error that ends it."""
    executor, errors = executor_of(Faulty()), list[BaseException]()

    def run() -> None:
        try:
            list(carry_out(executor, 100, first_key(0, None)))
        except BaseException as error:  # noqa: BLE001 (the test raises it again)
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: (executor.crew.statuses["iteration"] == 1).all())
    yield executor, errors, thread
    thread.join(60.0)
    assert not thread.is_alive()


def test_the_numbers_are_those_of_threads() -> None:
    there = hocket.run(Toy(), iterations=3, distribute=apart, cluster="loopback:2")
    here = hocket.run(Toy(), iterations=3, distribute="actor_learner:actors=1")
    same = jax.tree.map(lambda a, b: bool((a == b).all()), there.state, here.state)
    assert jax.tree.all(same)


@pytest.mark.parametrize("victim", ["actor/0", "learner/0"])
def test_an_instance_is_killed(
    victim: str, asleep: tuple[Split, list[BaseException], threading.Thread]
) -> None:
    _, errors, thread = asleep
    every = [
        pid for steward in stewards().values() for pid in (steward, *workers(steward).values())
    ]
    pid = workers(stewards()[victim])[victim]
    os.kill(pid, signal.SIGKILL)
    thread.join(SOON)
    node = {"actor/0": "n0", "learner/0": "n1"}[victim]
    assert str(errors[0]).startswith(
        f"the instance `{victim}` failed: process {pid} was killed by SIGKILL on `{node}`."
    )
    wait_until(lambda: all(map(is_gone, every)), SOON)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (signal.SIGKILL, r"because its steward ended: process \d+ was killed by SIGKILL\."),
        (signal.SIGSTOP, r"because nothing was heard from it for 2 s\."),
    ],
)
def test_a_node_is_lost(
    how: signal.Signals, message: str,
    asleep: tuple[Split, list[BaseException], threading.Thread],
) -> None:  # fmt: skip
    """The run says which, and nothing is left, neither here nor on the lost node."""
    executor, errors, thread = asleep
    every = [
        pid for steward in stewards().values() for pid in (steward, *workers(steward).values())
    ]
    os.kill(stewards()["actor/0"], how)
    thread.join(SOON)
    with pytest.raises(InstanceError, match=f"`actor/0` failed: its node `n0` is lost, {message}"):
        raise errors[0]
    wait_until(lambda: all(map(is_gone, every)), SOON)
    with pytest.raises(InstanceError) as again:
        executor.run(1)
    assert again.value is errors[0]


def test_what_an_instance_prints_has_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InstanceError, match=r"failed: process .* ended with code 3 on `n0`"):
        list(carry_out(executor_of(Faulty(fault="exit")), 100, first_key(0, None)))
    assert "[actor/0 on n0] the actor leaves " in capfd.readouterr().out


def test_an_error_on_a_node_has_its_traceback() -> None:
    with pytest.raises(InstanceError, match=r"(?s)`actor/0` failed:\nTraceback.*is on fire"):
        list(carry_out(executor_of(Faulty(fault="raise")), 100, first_key(0, None)))


RUN = """
import sys
from tests.runtime.launch.test_nodes import *

executor = executor_of(Toy())
executor.start(first_key(0, None))
executor.run(1)
print("runs", flush=True)
sys.stdin.readline()
executor.run(2)
print(size(executor.state()), flush=True)
executor.close()
"""


def size(state: Any) -> float:
    """Return a number that depends on every number of a state."""
    return sum(float(abs(x).sum()) for x in jax.tree.leaves(state) if x.dtype == "float32")


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a run on two nodes, which waits for a line of input after an iteration."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def of_run(child: subprocess.Popen[str]) -> dict[str, int]:
    """Return all processes of the run of a child: its stewards and their workers."""
    nodes = children(child.pid)
    return {f"steward {pid}": pid for pid in nodes} | {
        name: pid for node in nodes for name, pid in workers(node).items()
    }


def test_the_run_is_killed(child: subprocess.Popen[str]) -> None:
    pids = of_run(child)
    assert len(pids) == 4
    child.kill()
    wait_until(lambda: all_gone(pids), SOON)


def test_the_run_freezes(child: subprocess.Popen[str]) -> None:
    """A machine that hangs does not close its connections, but the lease runs out."""
    pids = of_run(child)
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: all_gone(pids), SOON)


def test_the_run_is_suspended_for_longer_than_the_lease(child: subprocess.Popen[str]) -> None:
    assert child.stdin and child.stdout
    pids = of_run(child)
    child.send_signal(signal.SIGTSTP)
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped + LEASE + 2.0)
    assert not any(map(is_gone, pids.values()))
    child.send_signal(signal.SIGCONT)
    child.stdin.write("\n")
    child.stdin.flush()
    undisturbed = hocket.run(Toy(), iterations=3, distribute=apart, cluster="loopback:2")
    assert float(child.stdout.readline()) == size(undisturbed.state)
    assert child.wait(30.0) == 0
    assert all_gone(pids)


def test_every_node_has_an_actor_by_default() -> None:
    plan = hocket.plan(Toy(), cluster="loopback:4")
    actor, learner = plan.places
    assert [actor.node(i) for i in range(actor.replicas)] == ["n0", "n1", "n2", "n3"]
    assert learner.replicas == 1 and not any("no work" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "processes",
            "`processes` is no cluster, .* one, such as `hosts:FILE`, `loopback:2`, `ray`",
        ),
        ("loopbak:2", "unknown cluster `loopbak:2`. Did you mean `loopback:2`?"),
        ("2", "unknown cluster `2`. Known: hosts:FILE, loopback:2, ray. Name your own"),
        ("", "unknown cluster ``"),
        ("nowhere.py:Mine", "there is no file `nowhere.py`"),
        ("hocket.errors:Mine", "unknown name `Mine` in `hocket.errors`"),
    ],
)
def test_a_name_that_is_no_cluster_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        cluster_named(name)


def test_every_cluster_of_hocket_is_named_to_the_user() -> None:
    members = set(lacking(object(), ClusterLauncher)) - {"launch"}
    ours = {name for name, made in LAUNCHERS.built_in.items() if members <= {*dir(made)}}
    assert {name.partition(":")[0] for name in CLUSTERS} == ours


@pytest.mark.parametrize(
    ("cluster", "launch", "why"),
    [
        ("loopback:2", "threads", "launch='threads' contradicts the cluster"),
        (None, "loopback:2", r"say cluster='loopback:2' \(`--cluster loopback:2`\) instead"),
    ],
)
def test_a_launcher_that_does_not_fit_the_cluster_is_refused(
    cluster: str | None, launch: str, why: str
) -> None:
    with pytest.raises(hocket.PlanError, match=why):
        hocket.plan(Toy(), distribute="actor_learner", cluster=cluster, launch=launch)


def test_several_seeds_are_told_which_strategy_has_room_for_them() -> None:
    with pytest.raises(hocket.PlanError, match='Use `distribute="data_parallel:replicas=2"`'):
        hocket.run(Toy(), seeds=2, iterations=1, cluster="loopback:2")


@pytest.mark.parametrize("lease", [0.0, -3.0, 1.5, float("nan")])
def test_a_lease_that_ends_between_two_signs_of_life_is_refused(lease: float) -> None:
    with pytest.raises(ValueError, match=f"at least 2 seconds, .* found {lease:g}"):
        hocket.run(Toy(), iterations=1, distribute=apart, cluster="loopback:2", lease=lease)
