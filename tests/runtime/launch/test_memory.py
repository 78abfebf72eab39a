"""The memory of a plan: its layout, and that all instances see the same."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Free, Pair, Place, Plan, averaged, fragment, trace
from hocket.core.plan.data import Launch
from hocket.runtime.free.newest import NewestHere
from hocket.runtime.launch import launch_named
from hocket.runtime.launch.memory import PlanMemory, memory_map
from tests.toys import Toy


def test_the_memory_of_a_plan_is_for_what_is_summed() -> None:
    """A narrow float is averaged as a wider one, and every array begins on a cache line."""

    class Narrow(Toy):
        @fragment(role="learn")
        def update(self, w: Any, key: Any, xs: Any) -> Any:
            loss = self.loss(w, xs)
            means = averaged([jnp.full(200_000, loss, jnp.bfloat16), jnp.full(3, loss)])
            return w, key, means[0].astype(jnp.float32).mean()

    places = (Place("all", ("env", "act", "learn"), replicas=2),)
    plan = Plan(trace(Narrow(), 8), places, launch=launch_named("processes"))
    _, nbytes = memory_map(plan).averages["all"]
    assert nbytes >= 2 * 2 * (4 * 200_000 + 64)


ACTORS = (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))
graph = functools.cache(lambda: trace(Toy(), 8))


def plan_of(launch: str = "processes", places: Any = ACTORS) -> Plan:
    """Return a free plan, whose memory has a part of every kind but averages."""
    schedule = Free(Pair("learner", "actor", max_age=2))
    return Plan(graph(), places, schedule=schedule, launch=launch_named(launch))


def test_parts_do_not_overlap() -> None:
    plan = replace(plan_of(), graph=trace(Toy(length=300), 8))  # messages of several pages
    where = memory_map(plan)
    parts = sorted([*where.links.values(), (where.ledger, 1), (where.newest, 1)])
    assert len(where.links) == 4 and parts[0][0] > 0  # the statuses come first
    for (begin, nbytes), (after, _) in zip(parts, [*parts[1:], (where.nbytes, 0)], strict=True):
        assert begin % 4096 == 0 and begin + nbytes <= after
    assert memory_map(replace(plan)) == where  # every process computes the same


def attach(plan: Plan, memory: PlanMemory, place: str) -> PlanMemory:
    """Open the memory of a run as an instance in another process does."""
    assert memory.file is not None
    file = type(memory.file).attach(os.dup(memory.file.fd), memory.file.nbytes)
    return PlanMemory.attach(plan, file, place, jax.local_devices()[:1])


def test_processes_see_what_the_others_write() -> None:
    plan = plan_of()
    run = PlanMemory.create(plan)
    learner, actor = (attach(plan, run, place) for place in ("learner", "actor"))
    actor.statuses[1]["iteration"] = 5
    assert run.statuses["iteration"].tolist() == [0, 5, 0]
    assert run.ledger and learner.ledger and actor.ledger and learner.newest and actor.newest
    learner.newest.write(3, [np.arange(4, dtype=np.float32)])
    learner.ledger.publish(3)
    assert actor.ledger.begin(0) and run.ledger.numbers["made_with"][0, 0] == 3
    version, (w,) = actor.newest.read()
    assert version == 3 and w.tolist() == [0, 1, 2, 3]
    run.clear()
    assert not actor.ledger.may_begin(0) and not learner.ledger.numbers["begun"].any()
    for memory in (learner, actor, run):
        memory.close()
    assert run.statuses["iteration"].tolist() == [0, 5, 0]  # can still be read
    assert run.ledger is None and run.newest is None


def test_another_layout_is_our_mistake() -> None:
    run = PlanMemory.create(plan_of())
    three = (replace(ACTORS[0], replicas=4), ACTORS[1])
    with pytest.raises(AssertionError, match="lays its memory out in another way"):
        attach(plan_of(places=three), run, "learner")
    run.close()


def test_one_process_needs_no_shared_memory() -> None:
    memory = PlanMemory.create(plan_of("threads"))
    assert memory.file is None and memory.ledger and isinstance(memory.newest, NewestHere)
    memory.ledger.publish(1)
    memory.newest.write(1, [])
    memory.clear()
    assert not memory.ledger.may_begin(0) and memory.newest.read() == (0, [])
    waiting = PlanMemory.create(Plan(graph(), ACTORS))
    assert waiting.ledger is waiting.newest is None and len(waiting.statuses) == 3


def test_processes_that_share_none_have_statuses_of_their_own() -> None:
    apart = Launch("apart", one_process=False, one_program=False, shares_memory="none")
    plan = Plan(graph(), ACTORS, launch=apart)
    run = PlanMemory.create(plan)
    actor = PlanMemory.attach(plan, None, "actor", jax.local_devices()[:1])
    actor.statuses["iteration"] = 5
    assert run.file is actor.file is None and not run.statuses["iteration"].any()
