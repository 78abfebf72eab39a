"""The present names of classes that have moved, so that the folders of old runs stay readable.

A configuration names classes and functions as `module:name`. When one of them moves to another
public module, list the old module in `HOMES`, so that old folders need no change.
"""

from __future__ import annotations

from typing import Any

HOMES = {
    "hocket.algorithms.a2c": "hocket.algorithms",
    "hocket.algorithms.dqn": "hocket.algorithms",
    "hocket.algorithms.impala": "hocket.algorithms",
    "hocket.algorithms.ppo": "hocket.algorithms",
    "hocket.algorithms.recurrent_ppo": "hocket.algorithms",
    "hocket.envs.acrobot": "hocket.envs",
    "hocket.envs.atari": "hocket.envs.gymnasium.atari",
    "hocket.envs.cartpole": "hocket.envs",
    "hocket.envs.catch": "hocket.envs",
    "hocket.envs.env": "hocket.envs",
    "hocket.envs.envpool": "hocket.envs.adapters.envpool",
    "hocket.envs.gymnasium": "hocket.envs.adapters.gymnasium",
    "hocket.envs.gymnax": "hocket.envs.adapters.gymnax",
    "hocket.envs.masked": "hocket.envs",
    "hocket.envs.mountain_car": "hocket.envs",
    "hocket.envs.pendulum": "hocket.envs",
    "hocket.envs.playground": "hocket.envs.adapters.playground",
    "hocket.envs.quadruped": "hocket.envs",
    "hocket.envs.quadruped_body": "hocket.envs.quadruped.body",
}
"""For each module of an earlier version, the module that has its contents today."""

ADDED: dict[str, dict[str, Any]] = {"hocket.algorithms:PPO": {"memory": 0}}
"""For each class, fields that old configurations lack, with values that keep the old behavior."""


def with_present_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Convert a configuration that an earlier version saved to the form of the present version."""
    settings = {**config, "algorithm": with_present_names(config["algorithm"])}
    if settings.pop("tensorboard", False):  # this was once a flag, and is now a logger
        settings["loggers"] = ["tensorboard"]
    return settings


def with_present_names(description: Any) -> Any:
    """Convert an algorithm's saved description to present names, and add the fields of `ADDED`."""
    match description:
        case dict():
            present = {
                key: _present(value) if key in ("class", "object") else with_present_names(value)
                for key, value in description.items()
            }
            return ADDED.get(present.get("class", ""), {}) | present
        case list():
            return [with_present_names(value) for value in description]
        case _:
            return description


def _present(path: str) -> str:
    home, colon, name = path.rpartition(":")
    return f"{HOMES.get(home, home)}{colon}{name}"
