"""Replay: past experience, stored so that a learner can draw it again.

    transitions.py  n-step transitions from rollouts
    memory.py       the replay that algorithms call, wherever its rows are kept
    device.py       prioritized replay in pure JAX, with the rows in arrays of the program
    service.py      the same replay as a service, with the rows in native tables
    calls.py        the host functions through which a program uses that service
    store/          the native tables and their server, usable without the rest of hocket

`hocket.replay.device` is compiled by XLA into an algorithm's program. `Table`, from `store`, is
native code. Through `serve` and `connect`, several processes can use the same table.
"""

from hocket.replay.store.access import Batch
from hocket.replay.store.client import Client, connect
from hocket.replay.store.schema import Column, Schema
from hocket.replay.store.server import Server, serve
from hocket.replay.store.table import Table
from hocket.replay.store.writer import Writer

__all__ = ["Batch", "Client", "Column", "Schema", "Server", "Table", "Writer", "connect", "serve"]
