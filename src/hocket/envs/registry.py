"""Environments by name."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

from hocket.envs.acrobot import Acrobot
from hocket.envs.cartpole import CartPole
from hocket.envs.catch import Catch
from hocket.envs.env import Env, TimeLimit
from hocket.envs.masked import Masked
from hocket.envs.mountain_car import MountainCar
from hocket.envs.pendulum import Pendulum
from hocket.errors import check_kind, unknown

# Each with the time limit that Gymnasium registers; Catch ends by itself. Without its velocities
# (POPGym's PositionOnlyCartPole) CartPole needs a memory.
_ENVS: dict[str, tuple[Any, int | None]] = {
    "Acrobot-v1": (Acrobot(), 500),
    "CartPole-v1": (CartPole(), 500),
    "Catch": (Catch(), None),
    "MountainCar-v0": (MountainCar(), 200),
    "Pendulum-v1": (Pendulum(), 200),
    "PositionOnlyCartPole": (Masked(CartPole(), keep=(0, 2)), 500),
}


def make(name: str, **options: Any) -> Env:
    """The environment called `name`, with some of its parameters changed.

    `max_steps` is its time limit (None for none). A name that begins with `gymnax:` is gymnax's,
    and so are its options; it needs `pip install 'hocket[gymnax]'`.

        make("CartPole-v1", max_steps=200, gravity=1.6)
        make("gymnax:Breakout-MinAtar", max_steps_in_episode=500)
    """
    if name.startswith("gymnax:"):
        from hocket.envs import gymnax

        return gymnax.make(name.removeprefix("gymnax:"), **options)
    if name not in _ENVS:
        raise ValueError(unknown("environment", name, [*_ENVS, "gymnax:<name>"]))
    env, max_steps = _ENVS[name]
    max_steps = options.pop("max_steps", max_steps)
    known = [field.name for field in fields(env)]
    for option, value in options.items():
        if option not in known:
            raise ValueError(unknown("option", option, [*known, "max_steps"], where=f"of `{name}`"))
        check_kind(option, value, vars(env)[option], where=f"of `{name}`")
    if max_steps is not None:
        check_kind("max_steps", max_steps, 500, where=f"of `{name}`")
    env = replace(env, **options)
    return env if max_steps is None else TimeLimit(env, max_steps)


def name_of(env: Any) -> str:
    """The name that `make` knows this environment by; of a wrapper or a stranger, its class."""
    for name in _ENVS:
        if make(name) == env:
            return name
    if type(env).__module__ == "hocket.envs.gymnax":
        return f"gymnax:{env.name}"
    if isinstance(env, TimeLimit):
        return name_of(env.env)
    return type(env).__name__


def names() -> list[str]:
    """Every name that `make` knows here, gymnax's too where it is installed."""
    if find_spec("gymnax") is None:
        return sorted(_ENVS)
    from hocket.envs import gymnax

    return sorted(_ENVS) + [f"gymnax:{name}" for name in gymnax.names()]
