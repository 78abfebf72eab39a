"""The exceptions and messages for users' mistakes: what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class PlanError(ValueError):
    """The error of a plan (a division of the program among devices) that cannot be carried out.

    The plan cannot run here, or its results would differ from those of one undivided program.
    """


class ContractError(ValueError):
    """The error of an algorithm, an environment or an extension that breaks its contract."""


class Mistake(Exception):
    """A user's mistake inside a flag's value.

    It is no `ValueError`, because tyro catches every `ValueError` and replaces its message.
    """


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    """Return the message for an unknown name, with the closest known name and a list of all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    place = f" {where}" if where else ""
    return f"unknown {kind} `{name}`{place}.{hint} Known: {', '.join(names)}."


def check_at_least(config: object, least: int, *names: str) -> None:
    """Raise if a setting in `names`, or any number in a setting that is a list, is below `least`.

    The settings are attributes of `config`. Those that JAX is tracing, as in a `vmap` over
    hyper-parameters, have no value yet and are not checked.
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
    """Raise if an option is unknown or has the wrong type.

    The type is checked only for options whose default is an instance of one of `kinds`.
    """
    for name, value in options.items():
        if name not in defaults:
            raise ValueError(unknown("option", name, defaults, where))
        if isinstance(defaults[name], kinds):
            check_option(name, value, defaults[name], where)


def check_option(name: str, value: object, default: object, where: str = "") -> None:
    """Raise if an option's value has another type than `default`. An int may stand for a float."""
    kind = type(default)
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or isinstance(value, bool) != isinstance(default, bool):  # a bool is an int too
        place = f" {where}" if where else ""
        raise ValueError(
            f"the option `{name}`{place} must be of type {kind.__name__} (such as {default!r}), "
            f"found {value!r}."
        )
