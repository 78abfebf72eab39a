"""What a strategy is, and how one is found by its name."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import hocket.strategies
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import FREE, Plan
from hocket.errors import check_kind, unknown
from hocket.system.names import find, read_words

Lag: TypeAlias = int | str
"""Of a strategy's option: a number of iterations, or `free`."""


class Strategy(Protocol):
    """Maps a graph onto a cluster."""

    def __call__(self, graph: Graph, cluster: Cluster, /) -> Plan: ...


_REGISTRY: dict[str, Callable[..., Strategy]] = {}
_OPTIONAL = {f"{type(x).__name__} | None": x for x in (False, 0, 0.0, "")}
"""A value of the kind that an option has, where its default is None."""


def strategy(fn: Callable[..., Plan]) -> Callable[..., Strategy]:
    """Register `fn(graph, cluster, *, options) -> Plan`; calling it with options gives a strategy.

    @hocket.strategy
    def wide(graph, cluster, *, actors=4):
        return Plan(graph, places=[...])

    hocket.run(algorithm, distribute=wide(actors=8))
    hocket.run(algorithm, distribute="wide")
    """
    options = {p.name: p for p in _options(fn)}

    @functools.wraps(fn)
    def configure(**chosen: Any) -> Strategy:
        where = f"of the strategy `{fn.__name__}`"
        for name, value in chosen.items():
            if name not in options:
                raise ValueError(unknown("option", name, options, where))
            default = options[name].default
            if options[name].annotation == "Lag":
                if type(value) is not int and value != FREE:
                    raise ValueError(
                        f"the option `{name}` {where} is a whole number, or `{FREE}`: found "
                        f"{value!r}."
                    )
                continue
            if default is None and value is not None:
                default = _OPTIONAL.get(options[name].annotation)
            if default is not None and default is not inspect.Parameter.empty:
                check_kind(name, value, default, where)
        return functools.partial(fn, **chosen)

    _REGISTRY[fn.__name__] = configure
    return configure


def strategies() -> dict[str, Callable[..., Strategy]]:
    """Every strategy by name: those of this package, and users' own."""
    for module in pkgutil.iter_modules(hocket.strategies.__path__):
        importlib.import_module(f"hocket.strategies.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def resolve(distribute: str | Strategy) -> Strategy:
    """A strategy, given itself or in words: `anakin`, `anakin:devices=2`, `file.py:mine:x=1`."""
    if not isinstance(distribute, str):
        return distribute
    name, options = read_words(distribute)
    known = strategies()
    home, separator, option = name.partition(":")
    if separator and home in known:
        option = option or "option"
        raise ValueError(f"`{distribute}` has an option without a value: write {option}=value.")
    if ":" not in name and name not in known:
        raise ValueError(unknown("strategy", name, known))
    configure = known[name] if name in known else find(name)
    if configure not in _REGISTRY.values():
        raise ValueError(f"`{name}` is no strategy: decorate it with `@hocket.strategy`.")
    return configure(**options)


def in_words(configure: Callable[..., Strategy], **options: Any) -> str:
    """A strategy with these options as `resolve` reads it: `actor_learner:actors=4`."""
    usual = {p.name: p.default for p in _options(inspect.unwrap(configure))}
    given = [f"{name}={value}" for name, value in options.items() if value != usual[name]]
    return ":".join([configure.__name__, *([",".join(given)] if given else [])])


def options_text(configure: Callable[..., Strategy]) -> str:
    """The options of a strategy with their defaults: `actors=2,lag=0`."""
    return ",".join(f"{p.name}={p.default}" for p in _options(inspect.unwrap(configure)))


def _options(fn: Callable[..., Plan]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY]
