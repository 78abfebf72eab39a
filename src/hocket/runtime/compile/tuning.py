"""Choices that make a program faster on the devices that it is lowered for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from hocket.core.program.tuning import MOST_UNROLLED, Tuning

SHORTEST_GRAPH = "xla_gpu_graph_min_graph_size"
"""XLA's flag for the fewest kernels in a row that it records and launches as one graph."""


def tuning_for(devices: Sequence[Any], *, exact: bool = False) -> Tuning:
    """Return the choices for these devices. With `exact` they are the same for all devices."""
    first = devices[0]
    if exact or first.platform != "gpu":
        return Tuning()
    # Measured with PPO on an H200 and 2,048 environments, in M environment steps/s. Unrolling: 34.0
    # without, 44.5 by 4, 47.3 by 8, 47.7 by 16, which takes twice as long to compile; no gain on a
    # CPU. Our kernels (`hocket.ops.dense`): 67.1 instead of 33.7, and with 16,384 environments 180
    # instead of 74.0. They are for a single device: XLA cannot cut a kernel for devices that share
    # an array, and each device would gather the whole batch.
    return Tuning(unroll=MOST_UNROLLED, kernels=len(devices) == 1 and _has_tensor_cores(first))


def compiler_options(devices: Sequence[Any]) -> dict[str, Any]:
    """Return the options of XLA for these devices. What the user sets in `XLA_FLAGS` wins."""
    if devices[0].platform != "gpu" or SHORTEST_GRAPH in os.environ.get("XLA_FLAGS", ""):
        return {}
    # By default XLA launches fewer than five kernels one by one, and the quadruped's solver is a
    # loop of four: with 4,096 environments an iteration of PPO took 25 ms on an H200, and takes
    # 10.6 ms with this. CartPole is as fast as before; graphs of one kernel made it 9 % slower.
    return {SHORTEST_GRAPH: 2}


def tuning_here(*, exact: bool = False) -> Tuning:
    """Return the choices for a program that the user will jit, on JAX's default device."""
    config: Any = jax.config
    if config.jax_default_device is not None:
        return Tuning()
    return tuning_for(jax.local_devices(), exact=exact)


def _has_tensor_cores(gpu: Any) -> bool:
    """Return True for an NVIDIA GPU that multiplies TF32, which is Ampere or later."""
    return gpu.device_kind.startswith("NVIDIA") and float(gpu.compute_capability) >= 8.0
