"""The environment axis of each value, and the kinds of the values on a replicated place.

Programs need no annotations. A step is traced at `num_envs` and at another number of environments;
the environment axis of a value is the one whose size is the number of environments both times. For
the kinds on a replicated place, `equations` walks two traces together: that of the whole step and
that of one replica's step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.core import jaxprs_in_params

from hocket.core.analysis.equations import Walker, constant, scan_kinds, site_of
from hocket.core.analysis.kinds import UNIFORM, Kind, local
from hocket.core.graph.trace import Block, Graph, Loop, Node, ValueId
from hocket.errors import PlanError


class Axes:
    """The environment axes of a graph's values, and the values' kinds on a replicated place.

    `other` is the graph of the same step with another number of environments. To find only
    axes, twice the number is enough. To find the kinds on a place with r replicas, it must be 1/r
    of the number in `graph`, because each replica runs the step on that share of the environments.
    """

    def __init__(self, graph: Graph, other: Graph) -> None:
        self.graph, self.other = graph, other
        self._axes: dict[ValueId, int | None] = {}

    def grown(self, value: ValueId) -> list[int]:
        """Return the axes of a value that grow with the number of environments."""
        pair = zip(self.graph.values[value].shape, self.other.values[value].shape, strict=True)
        return [i for i, (a, b) in enumerate(pair) if a != b]

    def axis(self, value: ValueId) -> int | None:
        """Return the environment axis of a value; None if it has none, or more than one."""
        if value not in self._axes:  # cached, since callers ask for it again and again
            self._axes[value] = self._find_axis(value)
        return self._axes[value]

    def _find_axis(self, value: ValueId) -> int | None:
        # An axis that grows need not hold environments only: along [time * environments], for
        # example, a replica's share is not contiguous. So the axis must have exactly as many
        # elements as there are environments, in both traces.
        sizes = [
            [(i, g.num_envs) for i in self.grown(value) if g.values[value].shape[i] == g.num_envs]
            for g in (self.graph, self.other)
        ]
        exact = len(self.grown(value)) == len(sizes[0]) == len(sizes[1]) == 1
        return sizes[0][0][0] if exact else None

    def from_outside(self, value: ValueId) -> Kind:
        """Return the kind that a value from another place has when it reaches the replicas.

        A value with an environment axis is split among the replicas. Any other goes whole to each.
        """
        if value in self.graph.constants:
            pair = self.graph.constants[value], self.other.constants[value]
            return constant(*pair, self.other.num_envs / self.graph.num_envs)
        axis = self.axis(value)
        if axis is not None:
            return Kind("per_env", axis, outer=1)
        return UNIFORM if not self.grown(value) else local("it has no environment axis of its own")

    def on_place(self, inside: Callable[[Node], bool]) -> dict[ValueId, Kind]:
        """Return the kinds of all values on a place. `inside(node)` says if a node runs there."""
        kinds = {v: self.from_outside(v) for v in self.graph.block.inputs}
        self._block(self.graph.block, self.other.block, inside, kinds)
        return kinds

    def _block(
        self, a: Block, b: Block, inside: Callable[[Node], bool], kinds: dict[ValueId, Kind]
    ) -> None:
        for n, m in zip(a.nodes, b.nodes, strict=True):
            for v in n.ins:
                kinds.setdefault(v, self.from_outside(v))
            if inside(n):
                self._node(n, m, kinds)
            elif isinstance(n, Loop) and isinstance(m, Loop):
                self._loop(n, m, inside, kinds)

    def _node(self, n: Node, m: Node, kinds: dict[ValueId, Kind]) -> None:
        walker, given = Walker(self.other.num_envs / self.graph.num_envs), [kinds[v] for v in n.ins]
        kinds |= dict(zip(n.outs, walker.equation(n.eqn, m.eqn, given, n.where), strict=True))

    def _loop(
        self, n: Loop, m: Loop, inside: Callable[[Node], bool], kinds: dict[ValueId, Kind]
    ) -> None:
        """Find the kinds of this place's values in a loop, and add them to `kinds`.

        The loop runs on several places, so only some of its values are on this one.
        """

        def body(given: Sequence[Kind]) -> list[Kind]:
            for v in _made(n.body):  # forget the kinds found by the previous walk
                kinds.pop(v, None)
            kinds.update(zip(n.body.inputs, given, strict=True))
            self._block(n.body, m.body, inside, kinds)
            return [kinds.get(v) or self.from_outside(v) for v in n.body.outputs]

        given = [kinds[v] for v in n.ins]
        results = scan_kinds(n.eqn.params, site_of(n.eqn, m.eqn), given, body)
        kinds |= zip(n.outs, results, strict=True)


def check_kind(axes: Axes, value: ValueId, kind: Kind, what: str, place: str) -> None:
    """Raise if replicas would show a value that may be wrong, or whose shares do not fit together.

    Replicas show a value if they send it to another place, keep it in the state, or return it as a
    metric. Its kind must be uniform, or per-environment with the environments in order.
    """
    uneven = axes.grown(value) and axes.axis(value) is None
    if uneven:
        shape = list(axes.graph.values[value].shape)
        reason = (
            f"its shape {shape} grows with the environments but no axis is theirs alone, so it "
            f"cannot be split by environment: keep time and environments as two axes"
        )
    elif kind.tag == "local":
        reason = kind.why
    elif kind.tag == "partial":
        reason = (
            "it is reduced over this replica's environments: return it per environment, or wrap "
            "the mean in `averaged(...)`"
        )
    elif kind.degree and not kind.zero:
        reason = "it depends on the number of environments, which is smaller in a replica"
    elif kind.tag == "per_env" and kind.outer > 1:
        reason = "its environments are not in their order"
    else:
        return
    raise PlanError(f"the place `{place}` cannot run as replicas: {what}: {reason}.")


def shrinks_to_one(graph: Graph, other: Graph) -> bool:
    """Return True if any axis has size one in `other`, but a different size in `graph`."""
    return _shrinks(graph.closed.jaxpr, other.closed.jaxpr)


def _shrinks(a: Any, b: Any) -> bool:
    for e, f in zip(a.eqns, b.eqns, strict=False):
        outs = zip(e.outvars, f.outvars, strict=False)
        sizes = (xy for u, v in outs for xy in zip(u.aval.shape, v.aval.shape, strict=False))
        inner = zip(jaxprs_in_params(e.params), jaxprs_in_params(f.params), strict=False)
        if any(x != y == 1 for x, y in sizes) or any(_shrinks(x, y) for x, y in inner):
            return True
    return False


def _made(block: Block) -> Iterator[ValueId]:
    """Yield the values that are made in a block, and in the loops inside it."""
    for node, _ in block.walk():
        yield from node.outs
        yield from node.body.inputs if isinstance(node, Loop) else ()
