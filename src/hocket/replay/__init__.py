"""Replay: what happened, kept to be learned from again.

`hocket.replay.device` is pure JAX and fuses into an algorithm's program; `hocket.replay.table` is
native code, usable alone.
"""
