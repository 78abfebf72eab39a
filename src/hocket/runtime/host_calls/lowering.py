"""How a program is lowered for the CPU, so that the program itself calls host functions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from hocket.core.program.host import Caller, HostFunction, current_caller, host_p, lower_by_callback

CALL_TARGET = "hocket_host"
"""The name under which the function of `native/host.cpp` is registered with XLA."""


def _lower_on_cpu(context: Any, *operands: Any, of: HostFunction) -> Any:
    caller: Caller | None = current_caller.value
    slot = caller.slot(of, context.avals_in, context.avals_out) if caller else None
    if slot is None:
        return lower_by_callback(context, *operands, of=of)
    lowering = jax.ffi.ffi_lowering(CALL_TARGET, has_side_effect=of.keeps_state)
    return lowering(context, *operands, slot=np.int64(slot))


mlir.register_lowering(host_p, _lower_on_cpu, platform="cpu")
