"""The state of one Gymnasium environment as bytes, where it can be had."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.utils import EzPickle

# What a MuJoCo environment makes for itself: the model from its file, and what draws it. Its data
# is kept apart.
_MADE = {"model", "data", "mujoco_renderer", "spec"}


def snapshot(env: gym.Env[Any, Any], elapsed: int) -> bytes | None:
    """The state of `env` and how long its episode is; None where it offers no way to save it.

    Most environments are Python objects, which can be pickled with all that is in them. One with
    `EzPickle` only pickles how it was made: of those MuJoCo's can be saved, by their `MjData`.
    """
    if _is_mujoco(env):
        layers = [{k: v for k, v in vars(x).items() if k not in _MADE} for x in _layers(env)]
        for wrapper in layers[:-1]:
            del wrapper["env"]
        content = (layers, vars(env.unwrapped)["data"])
    elif any(isinstance(layer, EzPickle) for layer in _layers(env)):
        return None
    else:
        content = env
    try:
        return cloudpickle.dumps((elapsed, content))
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError):
        return None  # something of C's, such as a window


def thaw(state: bytes, env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], int]:
    """An environment in that state, and how long its episode is; `env` itself where it can be."""
    elapsed, content = pickle.loads(state)
    if not _is_mujoco(env):
        return content, elapsed
    layers, data = content
    for layer, values in zip(_layers(env), layers, strict=True):
        vars(layer).update(values)
    inner = vars(env.unwrapped)
    # Into the data that is there: what draws the environment looks at it too.
    importlib.import_module("mujoco").mj_copyData(inner["data"], inner["model"], data)
    return env, elapsed


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """The environment, from its outermost wrapper inwards."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _is_mujoco(env: gym.Env[Any, Any]) -> bool:
    module = sys.modules.get("gymnasium.envs.mujoco.mujoco_env")
    return module is not None and isinstance(env.unwrapped, module.MujocoEnv)
