"""Environments: their contracts, our own environments, and adapters to other packages.

env.py            the contract of pure environments
host.py           the contract of environments that run on the host as ordinary code
spaces.py         the shapes and bounds of observations and actions
classic/          small environments in pure JAX
quadruped/        a four-legged robot in pure JAX
gymnasium/        running Gymnasium environments, Atari among them
adapters/         environments of other packages, by name
native/           C++ that steps environments
registry.py       every environment by name
unroll.py         the acting loop with which every algorithm's `step` begins
episode.py        episode statistics
host_steps.py     host environments inside a traced program
play/             evaluation and recording of a policy
drawing.py        pictures of environments
check.py          `check_env`, which tests an environment against its contract
"""

from hocket.envs.check import check_env
from hocket.envs.classic.acrobot import Acrobot
from hocket.envs.classic.cartpole import CartPole
from hocket.envs.classic.catch import Catch
from hocket.envs.classic.masked import Masked
from hocket.envs.classic.mountain_car import MountainCar
from hocket.envs.classic.pendulum import Pendulum
from hocket.envs.drawing import Cells, Circle, Drawable, Picture, Polygon, Stroke, depict, paint
from hocket.envs.env import Env, Step, TimeLimit, auto_reset
from hocket.envs.episode import EpisodeStats
from hocket.envs.host import HostEnv, HostEnvError, HostStep, LiveEnvs
from hocket.envs.play.evaluate import Evaluation, evaluate
from hocket.envs.play.recording import Recording, record
from hocket.envs.quadruped.env import Quadruped
from hocket.envs.registry import make, name_of, names
from hocket.envs.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space
from hocket.envs.unroll import Actor, Rollout, init_actor, unroll

__all__ = [
    "Acrobot",
    "Actor",
    "Box",
    "CartPole",
    "Catch",
    "Cells",
    "Circle",
    "DictSpace",
    "Discrete",
    "Drawable",
    "Env",
    "EpisodeStats",
    "Evaluation",
    "HostEnv",
    "HostEnvError",
    "HostStep",
    "LiveEnvs",
    "Masked",
    "MountainCar",
    "MultiDiscrete",
    "Pendulum",
    "Picture",
    "Polygon",
    "Quadruped",
    "Recording",
    "Rollout",
    "Space",
    "Step",
    "Stroke",
    "TimeLimit",
    "auto_reset",
    "check_env",
    "depict",
    "evaluate",
    "init_actor",
    "make",
    "name_of",
    "names",
    "paint",
    "record",
    "unroll",
]
