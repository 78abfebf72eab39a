"""A worker in a process of its own refuses another graph, and ends with the run's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.runtime.launch import process
from hocket.runtime.launch.watch import InstanceError
from tests.faults import Fickle, all_gone, cpu_seconds, two, wait_until, workers
from tests.runtime.launch.programs import start

pytestmark = pytest.mark.usefixtures("nothing_is_left")
SOON = 5.0
"""How long "within seconds" may take on a busy machine."""


def test_another_program_in_another_process() -> None:
    with pytest.raises(
        InstanceError,
        match=r"(?s)^the instance `\w+/0` failed:\nTraceback.*Fickle has a different graph in this "
        r"process \(\w+\) than in the run's \(\w+\)\. Let the graph depend only on",
    ):
        next(hocket.iterate(Fickle(home=os.getpid()), distribute=two, launch="processes"))


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
    pids = wait_until(lambda: len(pids := workers(script.pid)) == 3 and pids)
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


def test_a_worker_whose_parent_was_killed_before_it_listened(tmp_path: Path) -> None:
    """It ends, and removes the folder, because its parent could not."""
    folder = tmp_path / "sockets"
    folder.mkdir()
    nobody_reads, output = os.pipe()
    os.close(nobody_reads)
    argv = (sys.executable, "-m", process.__name__, str(folder), str(os.getpid()), "actor/0")
    child = subprocess.Popen(argv, stdout=output)
    os.close(output)
    assert child.wait(60.0) == 1
    assert not folder.exists()
