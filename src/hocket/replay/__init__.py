"""Replay: what happened, kept to be learned from again.

`hocket.replay.device` is pure JAX and fuses into an algorithm's program. `hocket.replay.table` is
native code, and `serve` and `connect` let other processes use such tables; these work alone.
"""

from hocket.replay.access import Batch
from hocket.replay.client import Client, connect
from hocket.replay.schema import Column, Schema
from hocket.replay.server import Server, serve
from hocket.replay.table import Table

__all__ = ["Batch", "Client", "Column", "Schema", "Server", "Table", "connect", "serve"]
