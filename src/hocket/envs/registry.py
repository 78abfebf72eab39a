"""Environments by name."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from hocket.envs.classic.acrobot import Acrobot
from hocket.envs.classic.cartpole import CartPole
from hocket.envs.classic.catch import Catch
from hocket.envs.classic.masked import Masked
from hocket.envs.classic.mountain_car import MountainCar
from hocket.envs.classic.pendulum import Pendulum
from hocket.envs.env import TimeLimit
from hocket.envs.host import HostEnv
from hocket.envs.quadruped.env import Quadruped
from hocket.errors import check_options, unknown
from hocket.system.registry import Registry

# Each environment has the time limit that Gymnasium registers for it, the quadruped that of Ant.
# Catch needs none. PositionOnlyCartPole is one of POPGym's: it hides the velocities, so the policy
# needs a memory.
_ENVS: dict[str, tuple[Any, int | None]] = {
    "Acrobot-v1": (Acrobot(), 500),
    "CartPole-v1": (CartPole(), 500),
    "Catch": (Catch(), None),
    "MountainCar-v0": (MountainCar(), 200),
    "Pendulum-v1": (Pendulum(), 200),
    "PositionOnlyCartPole": (Masked(CartPole(), keep=(0, 2)), 500),
    "Quadruped-v1": (Quadruped(), 1000),
}

# A key is the part of a name before the colon. Files of `adapters` take precedence over plugins.
_ADAPTERS = Registry("adapter", "hocket.envs.adapters", group="hocket.environments")


def make(name: str, **options: Any) -> Any:
    """Return the environment called `name`, with some of its parameters changed.

    `max_steps` is the time limit, and None means no limit. A name that begins with `gymnax:`,
    `playground:`, `gymnasium:` or `envpool:` belongs to that package: its adapter defines the
    options, and it needs an extra, such as `pip install 'hocket[gymnasium]'`. Environments of
    Gymnasium and EnvPool are ordinary code that runs on the host, each a `HostEnv`. All others are
    pure, each an `Env`.

        make("CartPole-v1", max_steps=200, gravity=1.6)
        make("gymnax:Breakout-MinAtar", max_steps_in_episode=500)
        make("playground:CartpoleBalance", max_steps=500)
        make("gymnasium:Ant-v5", vectorize="processes", workers=8)
        make("gymnasium:ALE/Pong-v5")
        make("envpool:Pong-v5", num_threads=4)
    """
    if is_adapted(name):
        adapter, _, rest = name.partition(":")
        return _ADAPTERS[adapter].make(rest, **options)
    if name not in _ENVS:
        known = [*_ENVS, *(f"{adapter}:<name>" for adapter in _ADAPTERS.names)]
        raise ValueError(unknown("environment", name, known))
    env, max_steps = _ENVS[name]
    max_steps = options.pop("max_steps", max_steps)
    limit = {} if max_steps is None else {"max_steps": max_steps}
    check_options(options | limit, vars(env) | {"max_steps": 500}, where=f"of `{name}`")
    env = replace(env, **options)
    return env if max_steps is None else TimeLimit(env, max_steps)


def is_adapted(name: str) -> bool:
    """Return True for a name of another package's environment, such as `gymnax:Catch-bsuite`."""
    adapter, colon, _ = name.partition(":")
    return bool(colon) and adapter in _ADAPTERS.names


def name_of(env: Any) -> str:
    """Return the name by which `make` knows `env`, else the name of its class."""
    for name in _ENVS:
        if make(name) == env:
            return name
    if isinstance(env, HostEnv):
        return env.name
    home, _, adapter = type(env).__module__.rpartition(".")
    if home == _ADAPTERS.package:
        return f"{adapter}:{env.name}"
    if isinstance(env, TimeLimit):
        return name_of(env.env)
    return type(env).__name__


def names() -> list[str]:
    """Return the names of hocket's own environments, and of gymnax's if gymnax is installed."""
    if find_spec("gymnax") is None:
        return sorted(_ENVS)
    from hocket.envs.adapters import gymnax

    return sorted(_ENVS) + [f"gymnax:{name}" for name in gymnax.names()]
