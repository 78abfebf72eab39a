"""Means through memory of two real processes. This file is also the program of each of them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.core.program.averaged import averaged, averaging
from hocket.runtime.averaging import Space
from hocket.runtime.averaging.ways.shm import OnHost, nbytes
from hocket.system.native import library
from hocket.system.shared_memory import MemoryFile

NBYTES = 1 << 20
REPLICAS = 2


def main(case: str, index: int, fd: int, path: Path) -> None:
    """Run a case as one replica, and write its result to a file."""
    file = MemoryFile.attach(fd, NBYTES)
    average = OnHost(Space(file, 0, NBYTES), REPLICAS, index)
    try:
        result = CASES[case](average, index)
    except Exception as error:  # noqa: BLE001
        result = str(error)
    path.write_bytes(pickle.dumps(result))


def scan(average: OnHost, index: int) -> Any:
    """Average a tree a hundred times in a loop, beside two means that depend on nothing else."""

    def body(tree: Any, _: None) -> Any:
        tree = averaged(jax.tree.map(lambda x: jnp.sin(x + index).astype(x.dtype), tree))
        return tree, (averaged(tree["a"].sum() + index), averaged(tree["a"].sum() - index))

    @jax.jit
    def run(tree: Any) -> Any:
        return jax.lax.scan(body, tree, None, 100)

    with averaging(average):
        return jax.tree.map(np.asarray, run(start()))


def start() -> Any:
    tree = {"a": jnp.arange(5001.0), "b": jnp.ones((3, 7)), "c": jnp.float32(2), "d": jnp.ones(0)}
    return {**tree, "half": jnp.arange(9, dtype=jnp.bfloat16), "wave": jnp.arange(3) + 1j}


def twice(average: OnHost, index: int) -> Any:
    """Average in a function that is lowered once and called six times, in any order."""
    inner = jax.jit(lambda w: averaged((w @ w.T).mean()))

    @jax.jit
    def run(ws: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c, [inner(w + c) for w in ws]), 0.0, None, 50)[1]

    with averaging(average):
        return np.stack(run([jnp.full((200, 200), k + 1.0) for k in range(6)]))


def root(average: OnHost, index: int) -> Any:
    """Pass the arrays of one replica to all, and then average again."""

    @jax.jit
    def run(x: Any) -> Any:
        (one,) = average(x, root=1)
        return one, average(one + index)[0]

    return [np.asarray(x) for _ in range(3) for x in run(jnp.arange(100.0) + 10 * index)]


def mismatch(average: OnHost, index: int) -> Any:
    return jax.jit(average)(jnp.ones(10 + index))


def alone(average: OnHost, index: int) -> Any:
    """Average alone, until the parent process closes the group."""
    fn = jax.jit(average).lower(jnp.ones(10)).compile()
    sys.stdout.write("waiting\n")
    sys.stdout.flush()
    return fn(jnp.ones(10))


CASES = {"scan": scan, "twice": twice, "root": root, "mismatch": mismatch, "alone": alone}


class Replicas:
    """The processes of a case."""

    def __init__(self, case: str, folder: Path, count: int = REPLICAS) -> None:
        self.file = MemoryFile.create(NBYTES)
        self.paths = [folder / str(index) for index in range(count)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, case, str(index), str(self.file.fd), str(path)],
                pass_fds=[self.file.fd],
                stdout=subprocess.PIPE,
            )
            for index, path in enumerate(self.paths)
        ]

    def results(self) -> list[Any]:
        for process in self.processes:
            process.communicate(timeout=100)
        return [pickle.loads(path.read_bytes()) for path in self.paths]


def test_both_get_the_same_bits_a_hundred_times(tmp_path: Path) -> None:
    one, two = Replicas("scan", tmp_path).results()
    assert pickle.dumps(one) == pickle.dumps(two), (one, two)
    assert not isinstance(one, str), one
    tree, (more, less) = one
    x = np.arange(5001, dtype=np.float32)
    for _ in range(3):
        x = (np.sin(x) + np.sin(x + 1)) / 2
    assert np.isfinite(tree["a"]).all() and tree["half"].dtype.name == "bfloat16"
    np.testing.assert_allclose(more[2], x.sum() + 0.5, rtol=1e-3)
    np.testing.assert_allclose(less[2], x.sum() - 0.5, rtol=1e-3)


def test_calls_of_one_function_do_not_meet(tmp_path: Path) -> None:
    for result in Replicas("twice", tmp_path).results():
        assert not isinstance(result, str), result
        expected = 200.0 * np.arange(1, 7) ** 2
        np.testing.assert_allclose(result, np.tile(expected[:, None], (1, 50)), rtol=1e-5)


def test_one_replica_can_tell_all_others(tmp_path: Path) -> None:
    for result in Replicas("root", tmp_path).results():
        assert not isinstance(result, str), result
        for one, mean in zip(result[::2], result[1::2], strict=True):
            np.testing.assert_array_equal(one, np.arange(100) + 10)
            np.testing.assert_array_equal(mean, np.arange(100) + 10.5)


def test_other_sizes_are_an_error_that_says_so(tmp_path: Path) -> None:
    for index, error in enumerate(Replicas("mismatch", tmp_path).results()):
        assert "the replicas run different programs" in error
        assert f"replica {index} has" in error


def test_close_ends_the_wait(tmp_path: Path) -> None:
    replicas = Replicas("alone", tmp_path, count=1)
    (process,) = replicas.processes
    assert process.stdout and process.stdout.readline() == b"waiting\n"
    library().hocket_average_close(replicas.file.address)
    assert "another replica has ended" in replicas.results()[0]


def test_too_many_call_sites_are_an_error() -> None:
    xs = [jnp.ones(4), jnp.ones(4, jnp.bfloat16)]
    room = nbytes([xs, xs], REPLICAS)
    average = OnHost(Space(MemoryFile.create(room), 0, room), REPLICAS, 0)
    jax.jit(lambda *xs: (average(*xs), average(*xs))).lower(*xs).compile()
    with pytest.raises(RuntimeError, match="`averaged` between processes is full"):
        jax.jit(lambda *xs: average(*xs)).lower(*xs).compile()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
