"""Measure DeepMind's Reverb for `replay.py service`, with its server in a process of its own.

    python3.11 -m venv reverb && reverb/bin/pip install 'dm-reverb[tensorflow]==0.14.0' 'numpy<2'
    reverb/bin/python benchmarks/peers_reverb.py <<< '{"case": "cart", "operation": "sample 256"}'

Imports nothing of hocket. The table is Prioritized(0.6), Fifo, MinSize(1). Reverb is measured in
each way that it offers: a writer that is flushed after each row, has 40 rows under way, or writes
chunks of 16; a TrajectoryDataset, which samples ahead, or `client.sample`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
from peers_replay import ALPHA, CAPACITY, CASES, Replay, Rows, serve


def main() -> None:
    if "--server" in sys.argv:
        run_server()
    else:
        serve(reverb_client, CAPACITY)


def run_server() -> None:
    import reverb  # pyright: ignore[reportMissingImports]
    import tensorflow as tf  # pyright: ignore[reportMissingImports]

    def signature(case: str) -> Any:
        return {
            name: tf.TensorSpec((1, *shape), dtype, name=name)
            for name, (dtype, shape) in CASES[case].columns.items()
        }

    tables = [
        reverb.Table(
            name=case, sampler=reverb.selectors.Prioritized(ALPHA),
            remover=reverb.selectors.Fifo(), max_size=CAPACITY[case],
            rate_limiter=reverb.rate_limiters.MinSize(1), signature=signature(case),
        )
        for case in CASES
    ]  # fmt: skip
    server = reverb.Server(tables=tables)
    print(server.port, flush=True)
    server.wait()


_started: list[int] = []


def port() -> int:
    if not _started:
        server = subprocess.Popen(
            [sys.executable, __file__, "--server"], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        _started.append(int(server.stdout.readline()))
        import atexit

        atexit.register(server.kill)
    return _started[0]


def reverb_client(rows: Rows, capacity: int) -> Replay:
    import reverb  # pyright: ignore[reportMissingImports]

    case = next(name for name in CASES if set(rows) == set(CASES[name].columns))
    address = f"localhost:{port()}"
    client = reverb.Client(address)
    each = [{name: x[k] for name, x in rows.items()} for k in range(len(rows["reward"]))]

    def add(writer: Any, k: int, priority: float) -> None:
        writer.append(each[k % len(each)])
        writer.create_item(case, priority, {name: writer.history[name][-1:] for name in rows})

    def fill(_: Rows, priority: np.ndarray[Any, Any]) -> None:
        with client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for k, p in enumerate(priority):
                add(writer, k, float(p))
                writer.flush(block_until_num_items=40)
            writer.flush()

    def one() -> Callable[[int], object]:
        writer = client.trajectory_writer(num_keep_alive_refs=1)

        def insert(k: int) -> None:
            add(writer, k, 1.0)
            writer.flush()

        return insert

    def many() -> Callable[[int], object]:
        writer = client.trajectory_writer(num_keep_alive_refs=1)

        def insert(k: int) -> None:
            for j in range(64):
                add(writer, j, 1.0)
                writer.flush(block_until_num_items=40)
            writer.flush()

        return insert

    def chunks() -> Callable[[int], object]:
        writer = client.trajectory_writer(num_keep_alive_refs=32)
        for name in rows:
            writer.configure((name,), num_keep_alive_refs=32, max_chunk_length=16)

        def insert(k: int) -> None:
            for j in range(64):
                add(writer, j, 1.0)
                if j % 16 == 15:
                    writer.flush(block_until_num_items=32)
            writer.flush()

        return insert

    def dataset() -> Callable[[int], object]:
        made = reverb.TrajectoryDataset.from_table_signature(
            address, case, max_in_flight_samples_per_worker=512
        )
        batches = made.batch(256, drop_remainder=True).as_numpy_iterator()
        return lambda k: next(batches)

    def sample(k: int) -> object:
        items = list(client.sample(case, num_samples=256, emit_timesteps=False))
        return [np.concatenate([x.data[j] for x in items]) for j in range(len(items[0].data))]

    def update() -> Callable[[int], object]:
        items = client.sample(case, num_samples=256, emit_timesteps=False)
        keys = [int(np.ravel(x.info.key)[0]) for x in items]
        changes = [{key: 0.5 + (k + j) % 7 for j, key in enumerate(keys)} for k in range(63)]
        return lambda k: client.mutate_priorities(case, updates=changes[k % 63])

    return Replay(
        fill=fill,
        operations={
            "insert 1": (1, one),
            "insert 64": (64, many),
            "insert 64, chunks of 16": (64, chunks),
            "sample 256": (256, dataset),
            "sample 256, client.sample": (256, lambda: sample),
            "update 256": (256, update),
        },
    )


if __name__ == "__main__":
    main()
