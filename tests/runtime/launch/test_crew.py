"""The instances of a plan together: what they compile, what they answer, and how they fail."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hocket
from hocket import Place, Plan, trace
from hocket.core.program.fragment import ROLES
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.runtime.launch import crew, launch_named
from hocket.runtime.launch.crew import Crew
from tests.toys import Toy


def test_one_replica_compiles_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str]] = []

    def ask_each(self: Crew, commands: dict[str, tuple[Any, ...]]) -> list[Any]:
        asked.extend([(list(commands), name) for name in {c[0] for c in commands.values()}])
        return ask(self, commands)

    ask = Crew._ask_each
    monkeypatch.setattr(Crew, "_ask_each", ask_each)
    plain = hocket.run(Toy(), distribute="sliced:slices=2,devices=1", iterations=2)
    assert "compile" not in [name for _, name in asked]  # on a CPU all compile at the same time
    monkeypatch.setattr(crew, "uses_accelerator", lambda plan: True)
    alike = hocket.run(Toy(), distribute="sliced:slices=2,devices=1", iterations=2)
    assert (["slice/0"], "compile") in asked
    jax.tree.map(np.testing.assert_array_equal, alike.metrics, plain.metrics)


def test_what_was_compiled_before_is_not_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is it traced again, because that would number the calls of `averaged` anew."""
    executor: Any = Split(
        Plan(trace(Toy(), 8), (Place("all", ROLES),), {}, launch=launch_named("threads"))
    )
    executor.start(jax.random.key(0))
    with jax.log_compiles():
        (mine,) = executor.crew.instances
        mine.compile()
        assert "Finished XLA compilation of jit(segment)" in caplog.text
        caplog.clear()
        advance(executor, 2)
        assert "jit(segment)" not in caplog.text and "tracing segment" not in caplog.text
    executor.close()
