"""CartPole's dynamics in C++, and as a GPU kernel."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.system.native import library

if TYPE_CHECKING:
    from hocket.envs.classic.cartpole import CartPole

_PHYSICS = ("gravity", "cart_mass", "pole_mass", "half_length", "force", "dt")


def dynamics_in_cpp(env: CartPole, *arrays: Array) -> list[Array]:
    """Compute `CartPole.dynamics` with the C++ code of `native/cartpole.cpp`."""
    *state, action = arrays
    outs = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in state]
    physics = {name: np.float64(vars(env)[name]) for name in _PHYSICS}
    inputs = (*(x.astype(jnp.float32) for x in state), action.astype(jnp.int32))
    return list(jax.ffi.ffi_call(_target(), outs)(*inputs, **physics))


def dynamics_as_kernel(env: CartPole, *arrays: Array, interpret: bool = False) -> list[Array]:
    """Compute `CartPole.dynamics` in one GPU kernel, compiled from its Python code."""
    from hocket.ops.elementwise import elementwise  # here, because Pallas is slow to import

    return elementwise(
        partial(type(env).dynamics.fn, env), *arrays, name="cartpole", interpret=interpret
    )


@cache
def _target() -> str:
    """Register the C++ function as an FFI target of XLA, and return the target's name."""
    name = "hocket_cartpole"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library()[name]), platform="cpu")
    return name
