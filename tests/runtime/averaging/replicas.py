"""Replicas in processes of their own that average, for tests. This file is also their program."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hocket.runtime.averaging.choice
from hocket.core.plan.device_id import device_ids
from hocket.core.program.averaged import averaged, averaging
from hocket.runtime.averaging import Members, Space
from hocket.runtime.averaging.choice import Offer, Reduction
from hocket.runtime.averaging.known import Averaging
from hocket.system.shared_memory import MemoryFile

SITES = [[jax.ShapeDtypeStruct((1000,), jnp.float32)], [jax.ShapeDtypeStruct((), jnp.float32)]]
TWO = [f"cpu:0/cpu:{i}of2@50%" for i in range(2)]
FOUR = [f"cpu:{d}/cpu:{i}of2@50%" for d in range(2) for i in range(2)]
APART = ["cpu:0", "cpu:1"]
MPS = [f"gpu:0/mps:{i}of2@100%" for i in range(2)]


def main(case: str, names: str, wanted: str, fd: int, nbytes: int, path: Path) -> None:
    """Run a case as one replica, and write its result to the file named after its index."""
    index = int(path.name)
    averaging = asked(names.split(","), wanted)
    space = Space(MemoryFile.attach(fd, nbytes), 0, nbytes)
    try:
        alone = Reduction(averaging, index, space)
        reduction = alone if not wanted else joined_alone(averaging, index, space)
        result = CASES[case](reduction, index)
    except Exception as error:  # noqa: BLE001
        result = str(error)
    path.write_bytes(pickle.dumps(result))


def asked(names: Sequence[str], wanted: str = "", *, is_exact: bool = False) -> Averaging:
    return Averaging(Members(device_ids(names)), SITES, wanted, is_exact)


def offers(averaging: Averaging, way: str, space: Space, *, is_trial: bool) -> list[Offer]:
    """Return the offers of all replicas, which this process can make for them."""
    return [
        Reduction(averaging, index, space).listen(way, is_trial=is_trial)
        for index in range(len(averaging.members))
    ]


def means(reduction: Reduction, index: int) -> Any:
    """Average a vector and a number in a loop; return both, and the number of calls."""

    def body(x: Any, _: None) -> Any:
        x = averaged(jnp.sin(x + index))
        return x, averaged(x[0] + index)

    with averaging(reduction):
        x, rows = jax.jit(lambda x: jax.lax.scan(body, x, None, 20))(jnp.arange(1000.0))
    reduction.check()
    return np.asarray(x), np.asarray(rows), reduction.counts()[0]


def trials(reduction: Reduction) -> Any:
    """Measure every way, as if all replicas had listened."""
    averaging, space = reduction._averaging, reduction._space
    assert space
    for way in averaging.choices:
        reduction.listen(way, is_trial=True)
    there = {way: offers(averaging, way, space, is_trial=True) for way in averaging.choices}
    return {way: reduction.measure(way, there[way]) for way in there}


def measured(reduction: Reduction, index: int) -> Any:
    costs, space = trials(reduction), reduction._space
    assert space
    reduction.listen("hier", is_trial=False)
    reduction.join("hier", offers(reduction._averaging, "hier", space, is_trial=False))
    return costs, means(reduction, index)


def measured_alone(reduction: Reduction, index: int) -> Any:
    """Measure alone, with a short time limit, since the other replicas never come."""
    hocket.runtime.averaging.choice.TRIAL_SECONDS = 0.5
    return trials(reduction)


def measured_and_left(reduction: Reduction, index: int) -> Any:
    """Measure alone, and close this replica meanwhile, as an interrupted run does."""
    hocket.runtime.averaging.choice.TRIAL_SECONDS = 1000.0
    threading.Timer(1.0, reduction.close).start()
    return trials(reduction)


def narrow(reduction: Reduction, index: int) -> Any:
    with averaging(reduction):
        x = jax.jit(averaged)(jnp.asarray(narrow_floats(index), jnp.bfloat16))
    return np.asarray(x.astype(jnp.float32))


def narrow_floats(index: int) -> np.ndarray:
    return np.asarray(jax.random.normal(jax.random.key(index), (1000,)))


def closed(reduction: Reduction, index: int) -> Any:
    """Average alone, and close this replica meanwhile, as a run that ends does."""
    fn = jax.jit(reduction).lower(jnp.ones(1000)).compile()
    threading.Timer(1.0, reduction.close).start()
    return fn(jnp.ones(1000))


def other_size(reduction: Reduction, index: int) -> Any:
    return jax.jit(reduction)(jnp.ones(1000 - index))


CASES: dict[str, Callable[[Reduction, int], Any]] = {
    "means": means, "measured": measured, "measured_alone": measured_alone, "closed": closed,
    "other_size": other_size, "measured_and_left": measured_and_left, "narrow": narrow,
}  # fmt: skip


class Replicas:
    """The processes of a case, forked from one."""

    def __init__(
        self, case: str, names: list[str], wanted: str, folder: Path, only: tuple[int, ...] = ()
    ) -> None:
        self.file = MemoryFile.create(nbytes := asked(names, wanted).nbytes)
        self.paths = [folder / str(index) for index in only or range(len(names))]
        given = [case, ",".join(names), wanted, str(self.file.fd), str(nbytes)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *given, *self.paths], pass_fds=[self.file.fd]
        )

    def results(self) -> list[Any]:
        assert self.process.wait(200) == 0
        return [pickle.loads(path.read_bytes()) for path in self.paths]


def expected(replicas: int) -> tuple[np.ndarray, np.ndarray]:
    x, rows = np.arange(1000, dtype=np.float32), []
    for _ in range(20):
        x = np.mean([np.sin(x + r) for r in range(replicas)], 0)
        rows.append(x[0] + (replicas - 1) / 2)
    return x, np.asarray(rows)


def joined_alone(averaging: Averaging, index: int, space: Space) -> Reduction:
    """Return one replica that has joined by the way that was asked for."""
    reduction, wanted = Reduction(averaging, index, space), averaging.wanted
    reduction.listen(wanted, is_trial=False)
    reduction.join(wanted, offers(averaging, wanted, space, is_trial=False))
    return reduction


def fork_each(jobs: Sequence[Callable[[], None]]) -> None:
    """Do each job in a fork of this process, which has imported JAX and not started it."""
    for job in jobs:
        if not os.fork():
            job()
            os._exit(0)
    for _ in jobs:
        assert os.wait()[1] == 0


if __name__ == "__main__":
    case, names, wanted, fd, nbytes, *paths = sys.argv[1:]
    given = case, names, wanted, int(fd), int(nbytes)
    fork_each([partial(main, *given, Path(path)) for path in paths])
