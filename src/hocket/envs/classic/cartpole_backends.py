"""CartPole's dynamics where XLA does not compile them: C++, and a GPU kernel."""

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
    """`CartPole.dynamics` once more, in `native/cartpole.cpp`."""
    *state, action = arrays
    outs = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in state]
    physics = {name: np.float64(vars(env)[name]) for name in _PHYSICS}
    state = [x.astype(jnp.float32) for x in state]
    return list(jax.ffi.ffi_call(_target(), outs)(*state, action.astype(jnp.int32), **physics))


def dynamics_as_kernel(env: CartPole, *arrays: Array, interpret: bool = False) -> list[Array]:
    """`CartPole.dynamics` itself, in one kernel."""
    from hocket.ops.elementwise import elementwise  # here: importing Pallas takes a while

    fn = partial(type(env).dynamics.fn, env)
    return elementwise(fn, *arrays, name="cartpole", interpret=interpret)


@cache
def _target() -> str:
    """The name that XLA knows the C++ function by, once the library is loaded."""
    name = "hocket_cartpole"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library()[name]), platform="cpu")
    return name
