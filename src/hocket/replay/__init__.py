"""Replay: what happened, kept to be learned from again.

    memory.py       a replay as algorithms use it, wherever its rows are
    device.py       prioritized replay in pure JAX
    transitions.py  n-step transitions from rollouts
    calls.py        the functions of a replay that a service keeps
    service.py      the replay as a service
    store/          the service's tables, usable alone

`hocket.replay.device` is pure JAX and fuses into an algorithm's program. `Table` is native code,
and `serve` and `connect` let other processes use such tables; these work alone (`replay/store`).
"""

from hocket.replay.store.access import Batch
from hocket.replay.store.client import Client, connect
from hocket.replay.store.schema import Column, Schema
from hocket.replay.store.server import Server, serve
from hocket.replay.store.table import Table
from hocket.replay.store.writer import Writer

__all__ = ["Batch", "Client", "Column", "Schema", "Server", "Table", "Writer", "connect", "serve"]
