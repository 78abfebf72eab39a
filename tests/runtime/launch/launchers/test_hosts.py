"""Clusters of machines that are reached by ssh, here all by an sshd of the tests' own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import PlanError
from hocket.cluster.hosts_file import Host
from hocket.runtime.launch import Command, Seat, cluster_named, launcher_named
from hocket.runtime.launch.launchers.hosts import Hosts, remote_command, why_it_failed
from hocket.runtime.launch.survey.machines import survey_nodes
from hocket.runtime.launch.watch import InstanceError
from hocket.system.network import get_network
from hocket.testing import check_launcher, difference
from tests import sshd
from tests.faults import wait_until
from tests.runtime.launch.programs import start
from tests.sshd import Sshd, marked
from tests.toys import Toy

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.usefixtures("nothing_is_left")]

TWO = "actor_learner:actors=2"
KEYS = "UserKnownHostsFile"


def hosts_of(tmp_path: Path, text: str) -> Hosts:
    (tmp_path / "hosts.toml").write_text(text)
    launcher = launcher_named(f"hosts:{tmp_path / 'hosts.toml'}")
    assert isinstance(launcher, Hosts)
    return launcher


def test_a_cluster_needs_a_file() -> None:
    with pytest.raises(ValueError, match="names no file: write `hosts:FILE`"):
        cluster_named("hosts")


def test_the_far_command_keeps_output_and_input_apart() -> None:
    """Only the program writes to standard output, and only it reads the input."""
    host = Host("n1", "n1", before="cat; echo 'hi' # a note", cores=3)
    program = "import os; print(os.environ['HOCKET_CORES'], input())"
    command = ["sh", "-c", remote_command(host, ("-c", program))]
    done = subprocess.run(command, input="word", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == [":3 word"]
    assert "hi" in done.stderr


@pytest.mark.parametrize(
    ("begun", "code", "said", "means"),
    [
        (False, 255, "ssh: Could not resolve hostname n1: Name or service not known", "`ssh` of"),
        (False, 255, "Host key verification failed.", "compare the key"),
        (False, 255, "me@n1: Permission denied (publickey).", "ssh-copy-id me@n1"),
        (False, 255, "ssh: connect to host n1 port 22: Connection refused", "Start one"),
        (False, 255, "ssh: connect to host n1 port 22: No route to host", "is on"),
        (False, 255, "ssh: connect to host n1 port 22: Network is unreachable", "no way"),
        (False, 255, "ssh: connect to host n1 port 22: Connection timed out", "does not answer"),
        (False, 255, "kex_exchange_identification: read", "-o BatchMode=yes me@n1 true` by hand"),
        (False, 1, "bash: conda: command not found", "`before` of [n1]"),
        (True, 127, "env: '/py': No such file or directory", "there is no `/py` there"),
        (True, 126, "env: '/py': Permission denied", "may not be started"),
        (True, 1, "(ModuleNotFoundError: No module named 'hocket')", "not installed there"),
        (True, 1, "/py: No module named hocket.cluster.node_survey", "another version"),
        (True, 1, "ModuleNotFoundError: No module named 'msgspec'", "a package is missing"),
        (True, 1, "ZeroDivisionError", ""),
    ],
)
def test_what_ssh_and_python_say(begun: bool, code: int, said: str, means: str) -> None:
    host = Host("n1", "me@n1", python="/py", before="conda activate rl")
    why = why_it_failed(host, ("ssh",), code, said, has_begun=begun)
    assert means in why and bool(means) == bool(why)


def test_addresses(tmp_path: Path) -> None:
    """They are those of the hosts file, else those that ssh would connect to."""
    (tmp_path / "config").write_text("Host far\n  HostName 127.0.0.7\n")
    launcher = hosts_of(tmp_path, '[n0]\nssh = "far"\n[n1]\naddress = "eth1"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_SSH", f"ssh -F {tmp_path / 'config'}")
        assert (launcher.host("n0"), launcher.host("n1")) == ("127.0.0.7", "eth1")
        with pytest.raises(ValueError, match=r"`n0` would listen at 127\.0\.0\.7, which"):
            launcher.survey(60)
        patch.setenv("HOCKET_SSH", "/no/such/ssh")
        assert launcher.host("n0") == "far"
        with pytest.raises(ValueError, match="no command `/no/such/ssh` here"):
            launcher.survey(60)


def test_a_plan_of_another_cluster_is_refused(tmp_path: Path) -> None:
    launcher = hosts_of(tmp_path, "[n0]\n[n7]\n")
    plan = hocket.plan(Toy(), distribute=TWO, cluster="loopback:2")
    assert "names the node `n1`, and its nodes are n0, n7" in launcher.why_not(plan)


def test_a_program_far_away(ssh: Sshd, tmp_path: Path) -> None:
    """It gets its input, and what it prints and how it ends comes back."""
    name = ssh.hosts(tmp_path / "hosts.toml", count=1)
    launcher = launcher_named(name)

    def begin(code: str) -> Any:
        seat = Seat("n0", ("n0",), node="n0")
        return launcher.start(seat, Command((sys.executable, "-c", code), {}, b"the secret"))

    speaking = begin("import sys; print(sys.stdin.read()); sys.exit('the last words')")
    assert speaking.hello(60) == "the secret"
    fate = wait_until(speaking.poll)
    assert "ended with code 1" in fate.how and "the last words" in fate.stderr
    assert speaking.kill(60)

    waiting = begin("import time; print('here', flush=True); time.sleep(600)")
    assert waiting.hello(60) == "here" and waiting.poll() is None
    assert len(marked(tmp_path / "hosts.toml")) == 1
    silent = begin("import time; time.sleep(600)")
    wait_until(lambda: len(marked(tmp_path / "hosts.toml")) == 2)
    with pytest.raises(TimeoutError, match="Python has begun and says nothing"):
        silent.hello(1.0)
    silent.kill(60)
    assert not waiting.kill(60), "only the client is known to have ended"
    assert waiting.poll() is None
    for each in marked(tmp_path / "hosts.toml"):
        os.kill(each, signal.SIGKILL)


def test_ssh_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where large packets are lost on the way: a server that accepts, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("HOCKET_SSH", f"ssh -F none -o ConnectTimeout=0 -p {port}")
        launcher = hosts_of(tmp_path, '[n0]\nssh = "127.0.0.1"\n')
        (surveyed,) = survey_nodes(launcher, ["n0"], 0.5)
    assert "in time: `ssh -F none" in surveyed.problems[0] and "MTU" in surveyed.problems[0]


@pytest.mark.slow
def test_a_run_has_the_numbers_of_one_machine(ssh: Sshd, tmp_path: Path) -> None:
    """It goes on when the clients of ssh end, and leaves nothing behind."""
    file = tmp_path / "hosts.toml"
    name = ssh.hosts(file)
    run = {"iterations": 40, "distribute": TWO, "exact": True}
    reports = hocket.iterate(Toy(), cluster=name, **run)
    first = next(reports)
    clients = sshd.clients(file)
    assert len(clients) == 2 and first.iteration < 40
    secret = get_network().secret
    for pid in (*clients, *marked(file)):  # it came through standard input, and is nowhere else
        told = b"".join(Path(f"/proc/{pid}/{x}").read_bytes() for x in ("cmdline", "environ"))
        assert secret not in told and secret.hex().encode() not in told
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
    (*_, last) = itertools.chain([first], reports)
    fused = hocket.run(Toy(), iterations=40, exact=True)
    here = hocket.run(Toy(), cluster="loopback:2", **run)
    assert difference(last.state, here.state) == 0.0
    assert difference(last.state, fused.state) < 1e-5  # half as many environments a program
    assert last.executor.plan.launch.name == name
    wait_until(lambda: not marked(file), 10.0)


@pytest.mark.slow
def test_a_killed_run_leaves_nothing(ssh: Sshd, tmp_path: Path) -> None:
    name = ssh.hosts(tmp_path / "hosts.toml")
    code = f"""
import hocket
from tests.toys import Toy
for report in hocket.iterate(Toy(), iterations=10**9, distribute="{TWO}", cluster="{name}"):
    print("begun", flush=True)
"""
    run = start("-c", code, folder=tmp_path)
    try:
        assert run.stdout and run.stdout.readline() == "begun\n", run.communicate()[1]
        assert len(marked(tmp_path / "hosts.toml")) >= 5  # two stewards, three instances
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    file = tmp_path / "hosts.toml"
    wait_until(lambda: not marked(file) and not sshd.clients(file), 10.0)


def refusal(name: str) -> str:
    with pytest.raises(ValueError, match="the node `n0`") as error:
        cluster_named(name)
    return str(error.value)


def test_ssh_is_refused(ssh: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hosts.toml"
    said = refusal(ssh.hosts(file, ssh="nowhere.invalid"))
    assert "no such host is known here. Correct `ssh` of [n0]" in said and "`n1`" in said
    monkeypatch.setenv("HOCKET_SSH", f"{ssh.ssh} -o {KEYS}=/dev/null")
    assert "compare the key" in refusal(ssh.hosts(file))
    other = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    config = (ssh.folder / "ssh_config").read_text().replace("user_key", "no_key")
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("HOCKET_SSH", f"ssh -i {other} -F {tmp_path / 'config'}")
    assert "ssh-copy-id 127.0.0.1" in refusal(ssh.hosts(file))
    monkeypatch.setenv("HOCKET_SSH", f"{ssh.ssh} -p 1")
    assert "no ssh server listens there" in refusal(ssh.hosts(file))


def test_python_is_refused(ssh: Sshd, tmp_path: Path) -> None:
    file, bare = tmp_path / "hosts.toml", tmp_path / "python"
    assert "there is no `/no/python` there" in refusal(ssh.hosts(file, python="/no/python"))
    assert "`before` of [n0]" in refusal(ssh.hosts(file, before="cd /no/such/folder"))
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    assert "may not be started" in refusal(ssh.hosts(file, python=str(bare)))
    bare.chmod(0o755)
    said = refusal(ssh.hosts(file, python=str(bare)))
    assert f"hocket is not installed there for `{bare}`" in said
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    said = refusal(ssh.hosts(file, python=str(bare)))
    assert "a package is missing there" in said and "No module named 'jax'" in said


def test_another_version_is_refused(ssh: Sshd, tmp_path: Path) -> None:
    """The survey refuses it, and so does a run whose cluster was surveyed before it changed."""
    file = tmp_path / "hosts.toml"
    shutil.copytree(sshd.ROOT / "src", tmp_path / "src")
    cluster = cluster_named(ssh.hosts(file, count=1))
    (tmp_path / "src/hocket/ops/losses.py").write_text("# changed\n")
    (tmp_path / "src/hocket/system/native/libhocket.so").unlink()
    # Without `site`, so that an editable installation is not imported before these sources.
    python = tmp_path / "python"
    path = f"$PYTHONPATH:{sysconfig.get_path('purelib')}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    name = ssh.hosts(file, count=1, sources=tmp_path / "src", python=str(python))
    said = refusal(name)
    assert "it has hocket with the digest" in said and "install the same files" in said
    assert "the node `n0`: its hocket has no libhocket.so" in said
    with pytest.raises(PlanError, match="the node `n0`: it has hocket with the digest"):
        hocket.run(Toy(), iterations=1, distribute="actor_learner:actors=1", cluster=cluster)
    wait_until(lambda: not marked(file), 10.0)


def test_a_steward_that_cannot_listen(ssh: Sshd, tmp_path: Path) -> None:
    name = ssh.hosts(tmp_path / "hosts.toml", count=1, address="no-interface")
    with pytest.raises(InstanceError, match="`no-interface` is no address") as error:
        hocket.run(Toy(), iterations=1, distribute="actor_learner:actors=1", cluster=name)
    assert "node `n0`" in str(error.value) and "Correct the address" in str(error.value)
    assert "Traceback" not in str(error.value)


@pytest.mark.slow
def test_the_launcher_keeps_its_contract(ssh: Sshd, tmp_path: Path) -> None:
    said = str(check_launcher(ssh.hosts(tmp_path / "hosts.toml"), seconds=30.0))
    assert "tells how a program ended" in said and "actor | learner: max difference" in said
    for pid in marked(tmp_path / "hosts.toml"):  # the programs whose clients were killed
        os.kill(pid, signal.SIGKILL)
