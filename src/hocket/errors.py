"""The exceptions and messages for users' mistakes: what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class PlanError(ValueError):
    """A plan cannot run here, or cannot give the numbers of the fused program."""


class ContractError(ValueError):
    """An algorithm, an environment or an extension breaks its contract."""


class Mistake(Exception):
    """A user's mistake inside a flag's value.

    Not a `ValueError`: tyro catches those and replaces the message by its own.
    """


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    """Return the message for an unknown name, with the closest known name and a list of all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    place = f" {where}" if where else ""
    return f"unknown {kind} `{name}`{place}.{hint} Known: {', '.join(names)}."


def check_at_least(config: object, least: int, *names: str) -> None:
    """Raise if a named setting of `config`, or any number in a tuple or list of them, is too small.

    Settings that JAX is tracing, as in a `vmap` over hyper-parameters, have no value and are
    skipped.
    """
    for name in names:
        value = vars(config)[name]
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int | float) and not number >= least:
                raise ValueError(
                    f"`{name}` of {type(config).__name__} must be at least {least}, found {value}."
                )


def check_options(
    options: Mapping[str, object],
    defaults: Mapping[str, object],
    where: str,
    kinds: type | tuple[type, ...] = object,
) -> None:
    """Raise if an option is unknown, or if it has a default of one of `kinds` and another type."""
    for name, value in options.items():
        if name not in defaults:
            raise ValueError(unknown("option", name, defaults, where))
        if isinstance(defaults[name], kinds):
            check_option(name, value, defaults[name], where)


def check_option(name: str, value: object, default: object, where: str = "") -> None:
    """Raise if an option's value is not of the type of `default`; an int will do for a float."""
    kind = type(default)
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or isinstance(value, bool) != isinstance(default, bool):  # a bool is an int too
        place = f" {where}" if where else ""
        raise ValueError(
            f"the option `{name}`{place} must be of type {kind.__name__} (such as {default!r}), "
            f"found {value!r}."
        )
