"""Environments: the pure contract, environments of our own, and adapters to others'."""

from hocket.envs.acrobot import Acrobot
from hocket.envs.cartpole import CartPole
from hocket.envs.catch import Catch
from hocket.envs.check import check_env
from hocket.envs.env import Env, Step, TimeLimit, auto_reset
from hocket.envs.episode import EpisodeStats
from hocket.envs.masked import Masked
from hocket.envs.mountain_car import MountainCar
from hocket.envs.pendulum import Pendulum
from hocket.envs.registry import make, names
from hocket.envs.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space
from hocket.envs.unroll import Actor, Rollout, init_actor, unroll

__all__ = [
    "Acrobot",
    "Actor",
    "Box",
    "CartPole",
    "Catch",
    "DictSpace",
    "Discrete",
    "Env",
    "EpisodeStats",
    "Masked",
    "MountainCar",
    "MultiDiscrete",
    "Pendulum",
    "Rollout",
    "Space",
    "Step",
    "TimeLimit",
    "auto_reset",
    "check_env",
    "init_actor",
    "make",
    "names",
    "unroll",
]
