"""Saving the state of one Gymnasium environment as bytes, if possible, and restoring it."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.utils import EzPickle

# Attributes of a MuJoCo environment that are not pickled with it. The environment that the state is
# restored to has its own model, renderer and spec; `data` is saved separately.
_MADE = {"model", "data", "mujoco_renderer", "spec"}


def snapshot(env: gym.Env[Any, Any], elapsed: int) -> bytes | None:
    """Return the state of `env` and its elapsed steps; None if its state cannot be saved.

    Most environments are Python objects that pickle with all their contents. An `EzPickle` pickles
    only the arguments it was made with. It can be saved only if it is a MuJoCo environment, whose
    state is in `MjData`.
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
        return None  # the environment contains a C object, such as a window


def thaw(state: bytes, env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], int]:
    """Restore an environment from `state`, and return it with its elapsed steps.

    A MuJoCo environment is restored inside `env`. Any other is a new object, which replaces `env`.
    """
    elapsed, content = pickle.loads(state)
    if not _is_mujoco(env):
        return content, elapsed
    layers, data = content
    for layer, values in zip(_layers(env), layers, strict=True):
        vars(layer).update(values)
    inner = vars(env.unwrapped)
    # The saved data is copied into the existing object, because the renderer refers to that too.
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
