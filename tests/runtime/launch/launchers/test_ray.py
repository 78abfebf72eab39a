"""Runs on a cluster of Ray whose nodes are all this machine. Without ray, these are skipped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import PlanError
from hocket.core.plan.device_id import DeviceId
from hocket.runtime.launch import (
    Command,
    Seat,
    check_folder,
    cluster_launcher,
    cluster_named,
    launcher_named,
)
from hocket.runtime.launch.launchers.ray import Ray
from hocket.runtime.launch.watch import InstanceError
from hocket.testing import check_launcher, difference
from tests.faults import wait_until
from tests.front import Hocket
from tests.ray_cluster import RayCluster, end
from tests.runtime.launch.programs import start
from tests.toys import Toy

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("nothing_is_left"),
    pytest.mark.filterwarnings("default"),  # of ray and what it imports
]

TWO = "actor_learner:actors=2"
STEWARD, WORKER, ACTOR = "hocket.system.steward", "hocket.runtime.launch.process", "ray::Keeper"
TOKEN_SECONDS = 25.0
EXAMPLE = Path(__file__).parents[4] / "examples" / "ray_job.sh"


@pytest.fixture
def ray(ray_cluster: RayCluster) -> RayCluster:
    return ray_cluster


def processes(ray: RayCluster, what: str) -> list[int]:
    """Return the processes of the cluster's nodes whose command contains a text."""
    pids = list[int]()
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # not of this user, or gone
            if path.name.isdigit() and f"HOME={ray.folder}".encode() in (
                path / "environ"
            ).read_bytes().split(b"\0"):
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                pids += [int(path.name)] if what in line else []
    return pids


def nothing_runs(ray: RayCluster) -> bool:
    return not (processes(ray, STEWARD) or processes(ray, WORKER))


def test_the_survey(ray: RayCluster, hocket: Hocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    cluster = cluster_named("ray")
    assert [node.name for node in cluster.nodes] == ["n0", "n1"]
    assert all(device.id.is_host for device in cluster.devices)
    assert {device.id.node for device in cluster.devices} == {"n0", "n1"}
    assert cluster.launch and cluster.launch.name == "ray"
    assert launcher_named("ray").host("n1") == "127.0.0.1"  # pyright: ignore
    by_address = cluster_named(f"ray:{ray.address}")
    assert by_address.nodes == cluster.nodes
    (one,) = cluster_named("ray:nodes=1,cpus=1").nodes
    assert one.cores == 1
    listed = json.loads(hocket("devices", "--cluster", "ray", "--check", "--json").out)
    assert [node["name"] for node in listed["nodes"]] == ["n0", "n1"]
    ways = {(way["source"], way["target"]) for way in listed["check"]["rates"]}
    assert ways == {("n0", "n1"), ("n1", "n0")}
    wait_until(lambda: not processes(ray, ACTOR))


def test_the_launcher_passes(ray: RayCluster) -> None:
    assert "ok: `ray`" in str(check_launcher("ray"))
    wait_until(lambda: nothing_runs(ray))


@pytest.mark.parametrize("strategy", [TWO, f"{TWO},lag=1", "data_parallel"])
def test_a_run_has_the_numbers_of_loopback_nodes(ray: RayCluster, strategy: str) -> None:
    run = {"iterations": 12, "distribute": strategy, "exact": True}
    there = hocket.run(Toy(), cluster="ray", **run)
    here = hocket.run(Toy(), cluster="loopback:2", **run)
    assert difference(there.state, here.state) == 0.0
    wait_until(lambda: nothing_runs(ray))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ray:nodes=2,cpus=64", r"needs 2 nodes with 64 CPUs each.*free are n0 with 2 of 2 CPUs"),
        ("ray:nodes=3", r"needs 3 nodes with a CPU each.*`--wait 600` would wait for more"),
        ("ray:nodes=1,gpus=1", "needs 1 node with 1 GPU each"),
        ("ray:127.0.0.1:1", "this process is connected to the Ray cluster at"),
    ],
)
def test_what_is_not_there_is_refused_at_once(ray: RayCluster, name: str, says: str) -> None:
    cluster_named("ray")
    began = time.monotonic()
    with pytest.raises(ValueError, match=says):
        cluster_named(name)
    assert time.monotonic() - began < 5.0


def test_waiting_for_nodes(ray: RayCluster) -> None:
    """Nodes are waited for, and found when they come; if none comes, the time limit ends it."""
    with pytest.raises(PlanError, match=r"needs 3 nodes .* after 1 s: free are"):
        cluster_named("ray:nodes=3", wait=1.0)
    script = "from hocket.runtime.launch import cluster_named; import hocket\n"
    script += 'print([x.name for x in cluster_named("ray:nodes=3", wait=120.0).nodes], flush=True)'
    waiting = start("-c", script, folder=ray.folder)
    added = ray.add(cpus=1)
    try:
        out, errors = waiting.communicate(timeout=120)
        assert "['n0', 'n1', 'n2']" in out, errors
    finally:
        remove(ray, added)


def remove(ray: RayCluster, node: subprocess.Popen[bytes]) -> None:
    """Take a node from the cluster, and wait until Ray knows."""
    end(node)
    ray.nodes.remove(node)
    wait_until(lambda: len(launcher_named("ray").nodes(1.0)) == len(ray.nodes))  # pyright: ignore


def seat(node: str, *devices: DeviceId) -> Seat:
    return Seat(node, (node,), devices, node=node)


def test_what_is_reserved_is_given_back(ray: RayCluster) -> None:
    one, other = launcher_named("ray"), launcher_named("ray")
    one.reserve([seat("n0"), seat("n1")], 60.0)
    with pytest.raises(PlanError) as error:
        other.reserve([seat("n1")], 60.0)
    assert "the node `n1` has only 0 of its 2 CPUs free, and the run needs 2 CPUs" in str(error)
    one.release()
    other.reserve([seat("n1")], 60.0)
    other.release()
    other.release()


def test_a_program_sees_what_ray_has_assigned(ray: RayCluster) -> None:
    """It gets its input; of Ray's own settings only the GPUs that are reserved for it remain."""
    added = ray.add(cpus=1, gpus=3)
    launcher = Ray("cpus=1")
    try:
        (name,) = set(launcher.nodes(60.0)) - {"n0", "n1"}
        launcher.reserve([seat(name, DeviceId("gpu", 1, name))], 60.0)

        def seen(node: str) -> dict[str, str]:
            code = "import json, os, sys; print(json.dumps({**os.environ, '': sys.stdin.read()}))"
            member = launcher.start(seat(node), Command(("", "-c", code), {}, b"the secret"))
            env = json.loads(member.hello(60.0))
            assert "ended with code 0" in wait_until(member.poll).how
            assert env.pop("") == "the secret" and env["HOME"] == str(ray.folder)
            assert not [x for x in env if x.startswith("RAY_") or x == "OMP_NUM_THREADS"]
            return env

        assert len(set(seen(name)["CUDA_VISIBLE_DEVICES"].split(","))) == 2
        assert "CUDA_VISIBLE_DEVICES" not in seen("n0")
        assert seen("n0")["HOCKET_MOST_CORES"] == "1"
    finally:
        launcher.release()
        remove(ray, added)


def test_a_folder_of_ray_is_refused(ray: RayCluster, tmp_path: Path) -> None:
    """It would end with Ray's session, also if it is reached by another name."""
    launch = launcher_named("ray").launch
    check_folder(launch, tmp_path)
    inside = ray.folder / "0" / "session_latest" / "mine"
    with pytest.raises(ValueError, match=r"cannot be kept there: .*--runs /shared/runs"):
        check_folder(launch, inside)
    with pytest.raises(ValueError, match="--runs"):
        hocket.train(Toy(), cluster="ray", distribute=TWO, runs=inside)
    assert not inside.exists()


# How it ends.


def forever(ray: RayCluster) -> Iterator[Any]:
    """Carry out a run that goes on until something ends it."""
    return hocket.iterate(Toy(), iterations=10**9, distribute=TWO, cluster="ray", lease=5.0)


def kill_steward(ray: RayCluster) -> None:
    os.kill(processes(ray, STEWARD)[0], signal.SIGKILL)


def kill_actor(ray: RayCluster) -> None:
    os.kill(processes(ray, ACTOR)[0], signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "how"), [(kill_steward, "was killed by SIGKILL"), (kill_actor, "")]
)
def test_a_node_without_its_steward_is_lost(
    ray: RayCluster, kill: Callable[[RayCluster], None], how: str
) -> None:
    reports = forever(ray)
    next(reports)
    kill(ray)
    began = time.monotonic()
    with pytest.raises(InstanceError, match=rf"its node `n[01]` is lost, .*{how}"):
        list(reports)
    assert time.monotonic() - began < 10.0
    wait_until(lambda: nothing_runs(ray))
    wait_until(lambda: not processes(ray, ACTOR))
    launcher = launcher_named("ray")
    launcher.reserve([seat("n0"), seat("n1")], 60.0)  # nothing holds their CPUs any more
    launcher.release()


def test_a_node_is_killed(ray: RayCluster, tmp_path: Path) -> None:
    """The run ends with its name, and says that it has a checkpoint."""
    added = ray.add(cpus=1)
    (name,) = set(cluster_launcher("ray").nodes(60.0)) - {"n0", "n1"}
    run = {"distribute": "actor_learner:actors=3", "runs": tmp_path, "name": "lost"}
    folder = tmp_path / "lost" / "checkpoints"

    def watch(outcome: Any) -> None:
        if any(path.name.isdigit() for path in folder.glob("*")) and is_alive():
            raylet = [pid for pid in processes(ray, "raylet/raylet") if parent(pid) == added.pid]
            os.kill(raylet[0], signal.SIGKILL)
            added.wait()

    def is_alive() -> bool:
        return added.poll() is None

    try:
        endless = Toy(env_steps=10**9, num_envs=12)
        with pytest.raises(InstanceError, match=f"its node `{name}` is lost") as error:
            hocket.train(endless, cluster="ray", save_every=1000, watch=watch, lease=5.0, **run)
    finally:
        remove(ray, added)
    assert f"{folder.parent} has checkpoints: --resume" in "".join(error.value.__notes__)
    wait_until(lambda: nothing_runs(ray))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_a_killed_run_leaves_nothing(ray: RayCluster, tmp_path: Path) -> None:
    script = f"""
import hocket
from tests.toys import Toy
for report in hocket.iterate(Toy(), iterations=10**9, distribute="{TWO}", cluster="ray"):
    print("begun", flush=True)
"""
    run = start("-c", script, folder=tmp_path)
    try:
        assert run.stdout and run.stdout.readline() == "begun\n", run.communicate()[1]
        assert len(processes(ray, STEWARD)) == 2 and len(processes(ray, WORKER)) == 3
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    wait_until(lambda: nothing_runs(ray), 10.0)
    wait_until(lambda: not processes(ray, ACTOR), 10.0)


# From outside.


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RAY_AUTH_TOKEN": "another"}, "turned this process away.*RAY_AUTH_TOKEN_PATH"),
        ({"RAY_AUTH_MODE": "disabled"}, "turned this process away.*RAY_AUTH_MODE=token"),
        ({"RAY_ADDRESS": "127.0.0.1:1"}, r"no Ray cluster answers at 127\.0\.0\.1:1"),
        ({"RAY_ADDRESS": "ray://127.0.0.1:1"}, "ray job submit --working-dir"),
    ],
)
def test_a_process_that_may_not_join(
    ray: RayCluster, env: dict[str, str], says: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "devices", "--cluster", "ray"], env={**os.environ, **env},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert time.monotonic() - began < TOKEN_SECONDS
    assert done.returncode
    assert re.search(says, " ".join(done.stderr.split())), done.stderr


def test_a_job_from_outside(ray: RayCluster, tmp_path: Path) -> None:
    """It carries its working folder along, and may not keep its run there."""
    command = ["sh", str(EXAMPLE), "ppo", "--env", "CartPole-v1", "--env-steps", "2000"]
    command += ["--num-envs", "4", "--distribute", TWO, "--name", "job"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env |= {"RAY_API_SERVER_ADDRESS": f"http://{ray.dashboard}"}

    def submit(runs: Path | str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "mine.py").write_text(f"# to be kept in {runs}")
        return subprocess.run(
            command, env={**env, "RUNS": str(runs)}, cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    done = submit(tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "job" / "summary.json").exists()
    refused = submit("runs")
    assert refused.returncode and "--runs /shared/runs" in refused.stdout + refused.stderr
    wait_until(lambda: nothing_runs(ray))
