"""How a call of a host function is lowered for the CPU, which depends on who calls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hocket.core.program.host import call_host, calling
from hocket.runtime.host_calls.lowering import CALL_TARGET
from tests.runtime.host_calls.counter import Counter


class Slots:
    """A caller that has a slot of this number for every function, or none."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.asked: list[Any] = []

    def __call__(self, of: Any, arrays: Any) -> Any:
        raise AssertionError("nothing runs here")

    def slot(self, of: Any, ins: Any, outs: Any) -> int | None:
        self.asked.append((of, [x.shape for x in ins], [x.shape for x in outs]))
        return self.number


def lowered(counter: Counter, caller: Slots | None) -> str:
    """Return a program that calls a function twice, as text."""
    fn = jax.jit(lambda x: call_host(counter, call_host(counter, x)[0]))
    if caller is None:
        return fn.lower(jnp.zeros(3)).as_text()
    with calling(caller):
        return fn.lower(jnp.zeros(3)).as_text()


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_slot_is_called_by_its_number(keeps_state: bool) -> None:
    counter, caller = Counter(keeps_state=keeps_state), Slots(17)
    text = lowered(counter, caller)
    assert text.count(f"@{CALL_TARGET}(") == 2 and text.count("slot = 17 : i64") == 2
    assert text.count("has_side_effect = true") == (2 if keeps_state else 0)
    assert caller.asked[0] == (counter, [(3,)], [(3,)])


@pytest.mark.parametrize("caller", [Slots(None), None])
def test_without_a_slot_xla_calls_python(caller: Slots | None) -> None:
    text = lowered(Counter(keeps_state=False), caller)
    assert CALL_TARGET not in text and text.count("callback") >= 2
