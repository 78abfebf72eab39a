"""How hocket words a mistake: what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class PlanError(ValueError):
    """A plan, or an algorithm under a plan, that cannot give the fused program's numbers."""


class ContractError(ValueError):
    """An algorithm or an environment that does not keep its contract."""


class Mistake(Exception):
    """A user's mistake, in a sentence that no parser of flags on the way may reword."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    """The message for a name nobody knows: the nearest known one, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    place = f" {where}" if where else ""
    return f"unknown {kind} `{name}`{place}.{hint} Known: {', '.join(names)}."


def check_at_least(of: object, least: int, *names: str) -> None:
    """Refuse settings that are smaller; every number of one that has several.

    What jax traces, as in a `vmap` over settings, has no value yet and is left.
    """
    for name in names:
        value = vars(of)[name]
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int | float) and not number >= least:
                raise ValueError(
                    f"`{name}` of {type(of).__name__} must be at least {least}, found {value}."
                )


def check_options(
    options: Mapping[str, object],
    defaults: Mapping[str, object],
    where: str,
    kinds: type | tuple[type, ...] = object,
) -> None:
    """Refuse options that are not there, or of another kind than their default, if of `kinds`."""
    for name, value in options.items():
        if name not in defaults:
            raise ValueError(unknown("option", name, defaults, where))
        if isinstance(defaults[name], kinds):
            check_option(name, value, defaults[name], where)


def check_option(name: str, value: object, default: object, where: str = "") -> None:
    """Refuse an option's value of another kind than its default; a whole number is a number."""
    kind = type(default)
    fits = isinstance(value, kind) and isinstance(value, bool) == isinstance(default, bool)
    if kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits:
        place = f" {where}" if where else ""
        raise ValueError(
            f"the option `{name}`{place} must be of the kind of {default!r} ({kind.__name__}), "
            f"found {value!r}."
        )
