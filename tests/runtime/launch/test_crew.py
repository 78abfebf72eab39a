"""The instances of a plan together: what they compile, what they answer, and how they fail."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hocket
from hocket import Place, Plan, trace
from hocket.core.plan.data import Launch
from hocket.core.program.fragment import ROLES
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.runtime.host_calls.services import Services
from hocket.runtime.launch import crew, launch_named
from hocket.runtime.launch.crew import Crew
from hocket.runtime.launch.watch import InstanceError
from tests.runtime.launch.stand_ins import StandInLauncher
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


class NoRoom(StandInLauncher):
    def reserve(self, seats: Any, seconds: float) -> None:
        super().reserve(seats, seconds)
        raise TimeoutError("no room for anybody")


def two_actors(launcher: Any = None) -> Crew:
    actors = (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))
    launch = launcher.launch if launcher else Launch()
    return Crew(Plan(trace(Toy(), 8), actors, launch=launch), launcher)


def test_a_crew_that_has_failed_stays_failed() -> None:
    launcher = NoRoom()
    failing = two_actors(launcher)
    services = Services(failing.plan)
    with pytest.raises(TimeoutError) as first:
        failing.load({}, {}, services)
    assert launcher.reserved == ["actor/0", "actor/1", "learner/0"] and not launcher.members
    assert launcher.releases == 1 and not failing.is_well
    for again in (lambda: failing.load({}, {}, services), lambda: failing.run(1)):
        with pytest.raises(TimeoutError) as later:
            again()
        assert later.value is first.value
    failing.close()
    assert launcher.releases == 1


def leaves_of(crew: Crew) -> dict[Any, Any]:
    state = Toy().init(jax.random.key(0), 8)
    return dict(zip(crew.plan.graph.block.inputs, jax.tree.leaves(state), strict=True))


def test_instances_are_asked_all_at_once_or_by_place() -> None:
    """Their answers come in the order of their names."""
    crew = two_actors()
    assert not crew.is_well
    leaves = leaves_of(crew)
    crew.load(leaves, {}, Services(crew.plan))
    assert crew.is_well and crew.late() == {}
    everybody = crew.ask("spans")
    assert everybody == [([], 0)] * 3 and len(crew.ask("spans", of="actor")) == 2
    first, second, learner = crew.held()
    x = next(v for v in first if leaves[v].ndim == 2)
    np.testing.assert_array_equal(np.concatenate([first[x], second[x]]), leaves[x])
    assert {*first, *learner} == set(leaves) and not {*first} & {*learner}
    crew.close()
    with pytest.raises(RuntimeError, match="this run has ended: make another executor"):
        crew.ask("spans")


def test_a_failure_of_one_instance_ends_all() -> None:
    crew = two_actors()
    crew.load(leaves_of(crew), {}, Services(crew.plan))
    with pytest.raises(InstanceError, match="`actor/0` failed:\nTraceback"):
        crew.ask("no such command")
    assert not crew.is_well
    with pytest.raises(InstanceError, match="`actor/0` failed"):
        crew.run(1)
