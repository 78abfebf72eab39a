"""Algorithms, one file each."""

from typing import Any

from hocket.algorithms.dqn import DQN
from hocket.algorithms.ppo import PPO
from hocket.algorithms.recurrent_ppo import RecurrentPPO

__all__ = ["ALGORITHMS", "DQN", "PPO", "RecurrentPPO", "name_of"]

ALGORITHMS = {"dqn": DQN, "ppo": PPO, "recurrent-ppo": RecurrentPPO}
"""Every algorithm by the name that the command line has for it."""


def name_of(algorithm: Any) -> str:
    """The name of an algorithm; of one that is not ours, its class."""
    names = {cls: name for name, cls in ALGORITHMS.items()}
    return names.get(type(algorithm), type(algorithm).__name__)
