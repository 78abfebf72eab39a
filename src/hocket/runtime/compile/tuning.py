"""Choices that make a program faster on the devices that it is lowered for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from hocket.core.program.tuning import MOST_UNROLLED, Tuning

SHORTEST_GRAPH = "xla_gpu_graph_min_graph_size"
"""XLA's flag for the least number of consecutive kernels that it launches as one CUDA graph."""


def tuning_for(devices: Sequence[Any], *, exact: bool = False) -> Tuning:
    """Return how to tune programs for these devices: loop unrolling, and kernels of our own.

    With `exact`, the choices are the same for all devices.
    """
    first = devices[0]
    if exact or first.platform != "gpu":
        return Tuning()
    # Unroll by 8. PPO with 2,048 environments on an H200 does 34.0 million steps per second
    # without unrolling, 44.5 unrolled by 4, 47.3 by 8, and 47.7 by 16, which takes twice as long
    # to compile. A CPU gains nothing.
    # Use our kernels (`hocket.ops.dense`) on a single device. In another measurement they raised
    # 33.7 million steps per second to 67.1, and with 16,384 environments 74.0 to 180. XLA cannot
    # partition a kernel among devices that share an array: each would gather the whole batch.
    return Tuning(unroll=MOST_UNROLLED, kernels=len(devices) == 1 and _has_tensor_cores(first))


def compiler_options(devices: Sequence[Any]) -> dict[str, Any]:
    """Return the options of XLA for these devices. What the user sets in `XLA_FLAGS` wins."""
    if devices[0].platform != "gpu" or SHORTEST_GRAPH in os.environ.get("XLA_FLAGS", ""):
        return {}
    # XLA launches kernels as one graph if there are at least this many, else one by one. Its
    # default is five, but the quadruped's solver is a loop of four. With 4,096 environments on an
    # H200, an iteration of PPO took 25 ms by default, and takes 10.6 ms with a minimum of two. For
    # CartPole two is as fast as the default; one was 9 % slower.
    return {SHORTEST_GRAPH: 2}


def tuning_here(*, exact: bool = False) -> Tuning:
    """Return how to tune a program that the user will jit, for JAX's default device."""
    config: Any = jax.config
    if config.jax_default_device is not None:
        return Tuning()
    return tuning_for(jax.local_devices(), exact=exact)


def _has_tensor_cores(gpu: Any) -> bool:
    """Return True for an NVIDIA GPU with tensor cores for TF32, that is, Ampere or later."""
    return gpu.device_kind.startswith("NVIDIA") and float(gpu.compute_capability) >= 8.0
