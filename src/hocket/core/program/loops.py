"""`has_loops`, which tells if a function contains loops that XLA sees.

A loop that calls such a function is not worth unrolling: each copy of its body would contain all
these inner loops, and compiling would take long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from hocket.core.program.backend import swappable_p


def has_loops(function: Callable[..., Any], *args: Any) -> bool:
    """Return True if XLA sees loops in a function. It sees none in a kernel.

    For a swappable function, the implementation of the current backend counts.
    """
    return _loops(jax.make_jaxpr(function)(*args).jaxpr)


def _loops(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name in ("scan", "while") or any(map(_loops, _inside(eqn)))
        for eqn in jaxpr.eqns
    )


def _inside(eqn: JaxprEqn) -> Sequence[Jaxpr]:
    if eqn.primitive is swappable_p:
        function = partial(eqn.params["of"].chosen(), eqn.params["settings"])
        avals: list[Any] = [v.aval for v in eqn.invars]
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        return [jax.make_jaxpr(function)(*specs).jaxpr]
    return [] if eqn.primitive.name == "pallas_call" else list(jaxprs_in_params(eqn.params))
