"""What pays on the devices that a program is lowered for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from hocket.core.program.tuning import MOST_UNROLLED, Tuning

SHORTEST_GRAPH = "xla_gpu_graph_min_graph_size"
"""XLA's name for how many kernels in a row are recorded and launched as one."""


def tuning_for(devices: Sequence[Any], *, exact: bool = False) -> Tuning:
    """The choices for these devices; an exact program is the same everywhere."""
    first = devices[0]
    if exact or first.platform != "gpu":
        return Tuning()
    # PPO on an H200, 2,048 environments, in M environment steps/s. Unrolling: 34.0 without, 44.5
    # by 4, 47.3 by 8, 47.7 by 16 for twice the time to compile; nothing on a CPU. Kernels: from
    # 33.7 to 67.1, and with 16,384 environments from 74.0 to 180. XLA cannot cut a kernel up for
    # devices that share an array: each would gather the whole batch.
    return Tuning(unroll=MOST_UNROLLED, kernels=len(devices) == 1 and _has_tensor_cores(first))


def compiler_options(devices: Sequence[Any]) -> dict[str, Any]:
    """What XLA is told for these devices; what the user says in `XLA_FLAGS` holds."""
    if devices[0].platform != "gpu" or SHORTEST_GRAPH in os.environ.get("XLA_FLAGS", ""):
        return {}
    # XLA launches fewer than five one by one. The quadruped's solver is a loop of four: with 4,096
    # environments an iteration of PPO took 25 ms on an H200, and takes 10.6 with this. CartPole is
    # as fast as before; a graph of a single kernel would make it 9 % slower.
    return {SHORTEST_GRAPH: 2}


def tuning_here(*, exact: bool = False) -> Tuning:
    """The choices for a program that the user will jit, where JAX will put it by itself."""
    config: Any = jax.config
    if config.jax_default_device is not None:
        return Tuning()
    return tuning_for(jax.local_devices(), exact=exact)


def _has_tensor_cores(gpu: Any) -> bool:
    """Whether this is an NVIDIA GPU that multiplies TF32: Ampere or later."""
    return gpu.device_kind.startswith("NVIDIA") and float(gpu.compute_capability) >= 8.0
