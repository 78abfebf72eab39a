"""Saving the state of one Gymnasium environment as bytes, if that is possible."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.utils import EzPickle

# Attributes that are not pickled with a MuJoCo environment. It makes the model, from its file, and
# the renderer itself; `data` is saved separately.
_MADE = {"model", "data", "mujoco_renderer", "spec"}


def snapshot(env: gym.Env[Any, Any], elapsed: int) -> bytes | None:
    """Return the state of `env` and its elapsed steps; None if its state cannot be saved.

    Most environments are Python objects that pickle with all their contents. An `EzPickle` pickles
    only the arguments it was made with. Such environments can be saved only if they are MuJoCo's,
    which have their state in `MjData`.
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
        return None  # it contains a C object, such as a window


def thaw(state: bytes, env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], int]:
    """Return an environment in a saved state, and its elapsed steps. Reuses `env` for MuJoCo."""
    elapsed, content = pickle.loads(state)
    if not _is_mujoco(env):
        return content, elapsed
    layers, data = content
    for layer, values in zip(_layers(env), layers, strict=True):
        vars(layer).update(values)
    inner = vars(env.unwrapped)
    # Copied into the existing data, because the renderer refers to it too.
    importlib.import_module("mujoco").mj_copyData(inner["data"], inner["model"], data)
    return env, elapsed


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """Yield the wrappers from the outermost inwards, then the environment itself."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _is_mujoco(env: gym.Env[Any, Any]) -> bool:
    module = sys.modules.get("gymnasium.envs.mujoco.mujoco_env")
    return module is not None and isinstance(env.unwrapped, module.MujocoEnv)
