"""The compiled programs of one instance, made for its number of environments and its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Plan
from hocket.core.program.averaged import averaging
from hocket.core.program.backend import JAX, backend
from hocket.core.projection.instructions import Compute
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.compile.tuning import compiler_options, tuning_for
from hocket.runtime.instance.replicas import map_program
from hocket.runtime.instance.segment import Segment, Segments, arguments
from hocket.runtime.instance.store import Store, Values


class Programs:
    """The compiled segments of one instance.

    The segments in `shared` also serve other replicas in the same process. The segments in `own`
    serve only this instance.
    """

    def __init__(
        self, plan: Plan, place: str, store: Store, average: Reduction | None, shared: Segments
    ) -> None:
        spot = plan.place(place)
        self.graph = plan.graph.at(plan.envs_of(place) // spot.replicas)
        self.shared, self.own = shared, Segments()
        self._store, self._average, self._backend = store, average, spot.backend

    def segment(self, step: Compute, parts: int, *, calls_host: bool = False) -> Segment:
        """Return an instruction's segment. Replicas share it unless it calls host functions."""
        segments = self.own if calls_host else self.shared
        return segments.get(step, parts, lambda: self._new(step, parts))

    def compile(self, step: Compute, values: Values) -> None:
        """Compile a segment for these values. Other replicas find it in JAX's compilation cache."""
        with self.choices():
            self.segment(step, 1).fn.lower(*[values[v] for v in arguments(step)]).compile()

    def choices(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that sets this place's backend and its way to average over replicas."""
        if self._backend == JAX and self._average is None:
            return contextlib.nullcontext()
        return self._chosen()

    def graph_of(self, parts: int) -> Graph:
        """Return the graph for one of `parts` equal parts of this instance's environments."""
        choice = tuning_for(self._store.devices, exact=self.graph.exact)
        return self.graph.at(self.graph.num_envs // parts, choice)

    @contextlib.contextmanager
    def _chosen(self) -> Iterator[None]:
        average = averaging(self._average) if self._average else contextlib.nullcontext()
        with backend(self._backend), average:
            yield

    def _new(self, step: Compute, parts: int) -> Segment:
        store, graph = self._store, self.graph_of(parts)
        options = compiler_options(store.devices)
        if not store.grouped:
            return Segment(graph, step, options)
        ins, outs = ([v in store.stacked for v in vs] for vs in (arguments(step), step.outs))
        mapped = partial(map_program, ins=ins, outs=outs, mesh=store.mesh, replicas=store.replicas)
        return Segment(graph, step, options, mapped)
