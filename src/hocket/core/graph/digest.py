"""The digest of a program: equal for equal programs, in every process and however traced."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


def digest_of(closed: ClosedJaxpr, names: Sequence[str]) -> str:
    """Return one digest of a program and of the `names` of its inputs."""
    text = "\n".join([_Digests().closed(closed), *names])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Digests:
    """Digests of programs, made from what they compute.

    The text of a program cannot be used, because it numbers the functions that several calls
    share. Which calls share a function depends on what jax traced before.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def closed(self, closed: ClosedJaxpr) -> str:
        return f"{self.program(closed.jaxpr)} {' '.join(map(_array, closed.consts))}"

    def program(self, jaxpr: Jaxpr) -> str:
        if id(jaxpr) not in self._known:
            text = "\n".join(self._lines(jaxpr))
            self._known[id(jaxpr)] = hashlib.sha256(text.encode()).hexdigest()
        return self._known[id(jaxpr)]

    def _lines(self, jaxpr: Jaxpr) -> list[str]:
        numbers: dict[Any, int] = {}

        def made(variables: Sequence[Any]) -> str:
            for v in variables:
                numbers[v] = len(numbers)
            return " ".join(str(v.aval) for v in variables)

        def read(values: Sequence[Any]) -> str:
            return " ".join(
                f"{v.val!r}:{v.aval}" if isinstance(v, Literal) else str(numbers[v]) for v in values
            )

        lines = [made([*jaxpr.constvars, *jaxpr.invars])]
        for eqn in jaxpr.eqns:
            params = {name: self._param(x) for name, x in sorted(eqn.params.items())}
            lines.append(f"{made(eqn.outvars)} = {eqn.primitive} {params} {read(eqn.invars)}")
        return [*lines, read(jaxpr.outvars)]

    def _param(self, x: Any) -> Any:
        if isinstance(x, ClosedJaxpr):
            return self.closed(x)
        if isinstance(x, Jaxpr):
            return self.program(x)
        if type(x) in (tuple, list):
            return [self._param(item) for item in x]
        if isinstance(x, np.ndarray | jax.Array):
            return _array(x)
        return re.sub(r"0x[0-9a-f]+", "", str(x))  # addresses differ between processes


def _array(x: Any) -> str:
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(x) if is_key else x)
    return hashlib.sha256(data.tobytes()).hexdigest()
