"""The quadruped's environment step as one GPU kernel, with all the time steps of its physics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from hocket.envs.quadruped.arrow import Joints
from hocket.envs.quadruped.body import NUM_LEGS

if TYPE_CHECKING:
    from hocket.envs.quadruped.env import Quadruped

BLOCK = 8
"""Environments per program of the kernel. Their 32 legs match the 32 threads of a warp, so that
sums over legs stay within the warp."""
WARPS = 1


def dynamics_as_kernel(env: Quadruped, *arrays: Array, interpret: bool = False) -> list[Array]:
    """Compute `Quadruped.dynamics` in one GPU kernel, compiled from its Python code."""
    from jax.experimental import pallas as pl  # here, because Pallas is slow to import
    from jax.experimental.pallas import triton

    shape, size = arrays[0].shape, arrays[0].size
    inputs = [x.reshape(-1) for x in arrays]
    # A kernel cannot stack, so the legs' numbers are stacked here, into an array for each joint.
    torso = [*inputs[:7], *inputs[15:21]]
    legs = [
        jnp.stack(part[joint::2])
        for part in (inputs[7:15], inputs[21:29], inputs[29:])
        for joint in range(2)
    ]
    one = pl.BlockSpec((BLOCK,), lambda i: (i,))
    each = pl.BlockSpec((NUM_LEGS, BLOCK), lambda i: (0, i))
    outs = pl.pallas_call(
        partial(_kernel, env, size),
        grid=(pl.cdiv(size, BLOCK),),
        in_specs=[one] * len(torso) + [each] * len(legs),
        out_specs=[one] * 14 + [each] * 4,
        out_shape=[
            *(jax.ShapeDtypeStruct((size,), jnp.float32) for _ in range(14)),
            *(jax.ShapeDtypeStruct((NUM_LEGS, size), jnp.float32) for _ in range(4)),
        ],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="quadruped",
    )(*torso, *legs)
    moved, knees, (hip, knee, hip_speed, knee_speed) = outs[:13], outs[13], outs[14:]
    angles = [joint[leg] for leg in range(NUM_LEGS) for joint in (hip, knee)]
    speeds = [joint[leg] for leg in range(NUM_LEGS) for joint in (hip_speed, knee_speed)]
    return [x.reshape(shape) for x in (*moved[:7], *angles, *moved[7:], *speeds, knees)]


def _kernel(env: Quadruped, size: int, *refs: Any) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    first = pl.program_id(0) * BLOCK
    inside = first + lax.broadcasted_iota(jnp.int32, (BLOCK,), 0) < size
    legs_inside = first + lax.broadcasted_iota(jnp.int32, (NUM_LEGS, BLOCK), 1) < size
    ins, outs = refs[:19], refs[19:]
    torso = [triton.load(ref, mask=inside, other=0.0) for ref in ins[:13]]
    angles, speeds, torques = (
        Joints(*(triton.load(ref, mask=legs_inside, other=0.0) for ref in ins[i : i + 2]))
        for i in (13, 15, 17)
    )
    after = env.moved(torso, angles, speeds, torques)
    for ref, value, mask in zip(outs, after, [inside] * 14 + [legs_inside] * 4, strict=True):
        triton.store(ref, value, mask=mask)
