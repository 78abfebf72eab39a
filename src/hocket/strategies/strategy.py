"""The protocol of strategies, and how to find one by its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias

from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.checks import check
from hocket.core.plan.data import Plan
from hocket.errors import check_option, unknown
from hocket.system.names import find, read_words
from hocket.system.registry import Registry
from hocket.system.text import names_text

FREE = "free"
Lag: TypeAlias = int | str
"""The lag of parameters: a number of iterations, or `free` for a schedule where nobody waits."""
Options = ParamSpec("Options")
"""The options of a strategy with their types: its keyword-only parameters."""


class Strategy(Protocol):
    """A function that decides where on a cluster each fragment of a graph runs."""

    def __call__(self, graph: Graph, cluster: Cluster, /) -> Plan: ...


_DECORATED: dict[str, Callable[..., Strategy]] = {}
_INSTALLED = Registry("strategy", group="hocket.strategies")
_OPTIONAL = {f"{type(x).__name__} | None": x for x in (False, 0, 0.0, "")}
"""A sample value of each optional type, such as 0 for `int | None`, to check options against."""


def strategy(
    fn: Callable[Concatenate[Graph, Cluster, Options], Plan],
) -> Callable[Options, Strategy]:
    """Register `fn(graph, cluster, *, options) -> Plan` as a strategy, under its own name.

    The decorated function takes only the options, and returns a `Strategy` with them.

    @hocket.strategy
    def wide(graph, cluster, *, actors=4):
        return Plan(graph, places=[...])

    hocket.run(algorithm, distribute=wide(actors=8))
    hocket.run(algorithm, distribute="wide")
    """
    options = {p.name: p for p in _options(fn)}

    @functools.wraps(fn)
    def configure(*unnamed: Options.args, **chosen: Options.kwargs) -> Strategy:
        if unnamed:
            raise ValueError(
                f"the strategy `{fn.__name__}` takes its options by name ({', '.join(options)}): "
                f"found {unnamed[0]!r} without a name."
            )
        for name, value in chosen.items():
            _check_option(fn.__name__, options, name, value)
        made = functools.partial(fn, **chosen)
        return lambda graph, cluster: check(_on_nodes(made(graph, cluster), cluster))

    # This signature makes `help` and editors show only the options.
    signature = inspect.Signature([*options.values()], return_annotation="Strategy")
    vars(configure)["__signature__"] = signature
    _DECORATED[fn.__name__] = configure
    return configure


def _on_nodes(plan: Plan, cluster: Cluster) -> Plan:
    """Return the plan with the launcher of its cluster, and a note about nodes without work."""
    if (launch := cluster.launch_of_nodes) is None:
        return plan
    used = {device.node for place in plan.places for device in place.on}
    idle = [node.name for node in cluster.nodes if node.name not in used]
    note = f"note: no work for {names_text(idle)}: more replicas would use more nodes"
    return replace(
        plan, launch=launch, notes=(*plan.notes, *cluster.notes, *([note] if idle else []))
    )


def _check_option(
    strategy: str, options: dict[str, inspect.Parameter], name: str, value: object
) -> None:
    """Refuse an option that the strategy does not have, or a value of the wrong type."""
    where = f"of the strategy `{strategy}`"
    if name not in options:
        raise ValueError(unknown("option", name, options, where))
    default, annotation = options[name].default, options[name].annotation
    if annotation == "Lag":
        if type(value) is not int and value != FREE:
            raise ValueError(
                f"the option `{name}` {where} must be a whole number, or `{FREE}`: found {value!r}."
            )
        return
    if default is None and value is not None:
        default = _OPTIONAL.get(annotation)
    if default is not None and default is not inspect.Parameter.empty:
        check_option(name, value, default, where)


def strategies() -> dict[str, Callable[..., Strategy]]:
    """Return all strategies by name: built-in, installed, and the user's own."""
    installed = {name: _INSTALLED[name] for name in _INSTALLED.names}
    return dict(sorted({**installed, **_DECORATED}.items()))


def resolve(distribute: str | Strategy) -> Strategy:
    """Return the strategy that words such as `anakin:devices=2` or `file.py:mine:x=1` name.

    A `Strategy` is returned unchanged.
    """
    if not isinstance(distribute, str):
        return distribute
    name, options = read_words(distribute)
    home, separator, option = name.partition(":")
    if separator and (home in _DECORATED or home in _INSTALLED.names):
        option = option or "option"
        raise ValueError(f"`{distribute}` has an option without a value: write {option}=value.")
    if not separator and name not in {*_DECORATED, *_INSTALLED.names}:
        raise ValueError(unknown("strategy", name, {*_DECORATED, *_INSTALLED.names}))
    # Import an installed strategy only now that it is asked for.
    configure = find(name) if separator else _DECORATED.get(name) or _INSTALLED[name]
    if configure not in _DECORATED.values():
        raise ValueError(f"`{name}` is not a strategy: decorate it with `@hocket.strategy`.")
    return configure(**options)


def in_words(configure: Callable[..., Strategy], **options: Any) -> str:
    """Return the words from which `resolve` makes this strategy: `actor_learner:actors=4`."""
    usual = {p.name: p.default for p in _options(configure)}
    given = [f"{name}={value}" for name, value in options.items() if value != usual[name]]
    return ":".join([configure.__name__, *([",".join(given)] if given else [])])


def options_text(configure: Callable[..., Strategy]) -> str:
    """Return the options of a strategy with their defaults: `actors=2,lag=0`."""
    return ",".join(f"{p.name}={p.default}" for p in _options(configure))


def _options(fn: Callable[..., object]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY]
