"""The compiled programs of an instance: which replicas share, and under which choices."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from hocket import Place, Plan, trace
from hocket.core.program.averaged import averaged
from hocket.core.program.backend import Swappable
from hocket.core.projection.instructions import Compute
from hocket.runtime.instance.programs import Programs
from hocket.runtime.instance.segment import Segments
from hocket.runtime.instance.store import Store
from tests.toys import Toy

ALL = ("env", "act", "learn")
KEY = jax.random.key(2)
ACTORS = Plan(
    trace(Toy(), 8), (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))
)


def programs_of(plan: Plan, place: str, index: int = 0, average: Any = None, **shared: Any) -> Any:
    segments = shared.get("shared") or Segments()
    return Programs(plan, place, Store(plan, place, index), average, segments)


def first_of(plan: Plan, place: str) -> Compute:
    return next(x for x in plan.projection.programs[place] if isinstance(x, Compute))


def test_replicas_share_all_but_what_calls_their_own_host_functions() -> None:
    shared, step = Segments(), first_of(ACTORS, "actor")
    one, other = (programs_of(ACTORS, "actor", k, shared=shared) for k in range(2))
    segment = one.segment(step, 1)
    assert other.segment(step, 1) is segment is one.segment(step, 1)
    mine = one.segment(step, 1, calls_host=True)
    assert mine is not segment
    assert mine is one.segment(step, 1, calls_host=True)
    assert mine is not other.segment(step, 1, calls_host=True)
    assert [len(x.all()) for x in (shared, one.own, other.own)] == [1, 1, 1]


def test_a_replica_compiles_for_its_environments() -> None:
    for place, num_envs in (("actor", 4), ("learner", 8)):
        programs = programs_of(ACTORS, place)
        assert programs.graph.num_envs == num_envs
        assert programs.graph_of(2).num_envs == num_envs // 2


def test_what_averages_compiles_with_the_average_of_its_replica() -> None:
    def tenfold(*xs: Any) -> list[Any]:
        return [10 * x for x in xs]

    average = cast(Any, tenfold)
    for given, expected in ((None, 1.0), (average, 10.0)):
        programs = programs_of(ACTORS, "actor", average=given)
        with programs.choices():
            assert float(jax.jit(averaged)(1.0)) == expected


def test_a_place_compiles_with_its_backend() -> None:
    plain, native = (lambda x: (x,)), (lambda x: (-x,))
    swappable = Swappable("either", plain)
    swappable.register("cpp", native, ["cpu"])
    for name, chosen in (("jax", plain), ("cpp", native)):
        plan = Plan(trace(Toy(), 8), (Place("all", ALL, backend=name),))
        with programs_of(plan, "all").choices():
            assert swappable.chosen() is chosen
    assert swappable.chosen() is plain


def test_replicas_of_one_program_are_rows_of_a_segment() -> None:
    plan = Plan(trace(Toy(), 8), (Place("all", ALL, replicas=2),))
    programs, step = programs_of(plan, "all"), first_of(plan, "all")
    store = programs._store
    store.load(dict(zip(plan.graph.block.inputs, jax.tree.leaves(Toy().init(KEY, 8)), strict=True)))
    values = {**programs.graph.constants, **store.values}
    programs.compile(step, values)
    segment = programs.segment(step, 1)
    outs = dict(zip(step.outs, segment([values[v] for v in segment.arguments], store.devices),
                    strict=True))  # fmt: skip
    for v in step.outs:
        whole = plan.graph.values[v].shape
        rows = (2, *plan.graph.at(4).values[v].shape) if v in store.stacked else whole
        assert outs[v].shape == rows
    w = plan.graph.block.outputs[2]
    expected, _ = jax.jit(Toy().step)(Toy().init(KEY, 8))
    np.testing.assert_allclose(outs[w], expected.w, rtol=1e-5)
