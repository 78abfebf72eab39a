"""A segment of a place's program: neighbouring nodes, compiled as one function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hocket.core.graph.trace import Graph, ValueId
from hocket.core.projection.instructions import Compute


class Segment:
    """A jitted segment. Its name lists the names of its fragments.

    Replicas in one process may share a segment. The first replica to call it compiles it, while the
    others wait.
    """

    def __init__(
        self,
        graph: Graph,
        step: Compute,
        options: Mapping[str, Any],
        mapped: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        fn = _build(graph, step)
        self.arguments = arguments(step)
        names = (label.name for n in step.nodes for label in graph.nodes[n].labels)
        self.name = ", ".join(dict.fromkeys(names)) or "glue"
        self.fn: Any = jax.jit(
            mapped(fn) if mapped else fn, donate_argnums=range(len(step.donate)),
            compiler_options=dict(options),
        )  # fmt: skip
        self._compiled: set[tuple[Any, ...]] = set()
        self._compiling = threading.Lock()

    def __call__(self, args: Sequence[Any], devices: tuple[Any, ...]) -> Sequence[Any]:
        if devices in self._compiled:
            return self.fn(*args)
        with self._compiling:
            outs = self.fn(*args)
            self._compiled.add(devices)
        return outs


class Segments:
    """The segments of a place, each made when it is first needed.

    The key is the instruction, and the number of parts that the environments are cut into.
    """

    def __init__(self) -> None:
        self._segments: dict[tuple[Compute, int], Segment] = {}
        self._making = threading.Lock()

    def get(self, step: Compute, parts: int, make: Callable[[], Segment]) -> Segment:
        if (step, parts) not in self._segments:
            with self._making:  # look again, because another thread may have made it meanwhile
                if (step, parts) not in self._segments:
                    self._segments[step, parts] = make()
        return self._segments[step, parts]

    def all(self) -> list[tuple[tuple[Compute, int], Segment]]:
        return list(self._segments.items())


def arguments(step: Compute) -> list[ValueId]:
    """Return the arguments of a segment, in order. The values that it may overwrite come first."""
    return [*step.donate, *(v for v in step.ins if v not in step.donate)]


def _build(graph: Graph, step: Compute) -> Callable[..., list[Any]]:
    """Return the Python function that runs the nodes of a segment one after another."""

    def segment(*args: Any) -> list[Any]:
        values = {**graph.constants, **dict(zip(arguments(step), args, strict=True))}
        for number in step.nodes:
            node = graph.nodes[number]
            values |= zip(node.outs, node([values[v] for v in node.ins]), strict=True)
        # Copy a result that is an unchanged argument. Otherwise the argument and the result would
        # share a buffer, and donating one of the two would delete both.
        given = {id(x) for x in args}
        outs = [values[v] for v in step.outs]
        return [jnp.copy(x) if id(x) in given else x for x in outs]

    return segment
