"""What a strategy is, and how one is found by its name."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import hocket.distribute
from hocket.cluster import Cluster, Device
from hocket.core.describe import find, read_words
from hocket.core.graph import Graph
from hocket.core.plan import FREE, Channel, Plan
from hocket.errors import PlanError, check_kind, unknown

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


def share_out(devices: Sequence[Device], replicas: int, num_envs: int) -> Sequence[Device]:
    """As many of the devices as so many replicas can share equally, with their environments."""

    def fits(n: int) -> bool:
        return replicas % n == 0 or (n % replicas == 0 and num_envs % n == 0)

    counts = [n for n in range(1, len(devices) + 1) if replicas > 0 and fits(n)]
    return devices[: max(counts, default=1)]


def apart(cluster: Cluster, learners: int) -> tuple[Sequence[Device], Sequence[Device]]:
    """The devices in two: all but the last `learners`, and those; if there is one, it twice."""
    devices = cluster.devices
    if not 1 <= learners <= max(1, len(devices) - 1):
        raise PlanError(f"{learners} learner devices beside others were asked for of {cluster}.")
    return (devices[:-learners], devices[-learners:]) if len(devices) > 1 else (devices, devices)


def sample_channels(
    source: str, target: str, lag: Lag, max_age: int | None, replicas: int, batch: int = 1
) -> dict[str, Channel]:
    """Samples from `source` to `target`, and back what the next ones are made with.

    That is `lag` iterations late. Free, it is the newest there is, samples are learned from `batch`
    at a time, and at most `max_age` iterations later: by default with room for one of each of the
    `replicas`.
    """
    back = f"{target} -> {source}"
    if lag == FREE:
        usual = -(-replicas // max(1, batch))
        age = usual if max_age is None else max_age
        return {back: Channel(lag=FREE, max_age=age, batch=batch)}
    if batch != 1:
        raise PlanError(
            f"batch={batch} is for free channels, and lag={lag}, which waits for the samples of "
            f"all: use lag={FREE}."
        )
    if max_age is not None:
        raise PlanError(f"max_age={max_age} is for free channels, and lag={lag}: use lag={FREE}.")
    ahead = lag if isinstance(lag, int) else 0  # what is no number is refused by the plan
    return {f"{source} -> {target}": Channel(capacity=max(1, ahead)), back: Channel(lag=lag)}


def strategies() -> dict[str, Callable[..., Strategy]]:
    """Every strategy by name: those of this package, and users' own."""
    for module in pkgutil.iter_modules(hocket.distribute.__path__):
        importlib.import_module(f"hocket.distribute.{module.name}")
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
