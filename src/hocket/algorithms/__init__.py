"""Algorithms, one file each."""

from hocket.algorithms.dqn import DQN
from hocket.algorithms.ppo import PPO
from hocket.algorithms.recurrent_ppo import RecurrentPPO

__all__ = ["DQN", "PPO", "RecurrentPPO"]
