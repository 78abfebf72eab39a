"""Algorithms, one file each.

ppo.py  a2c.py  impala.py  dqn.py

actor_critic.py  the parts that actor-critics share: state, agent, gradient step
heads.py         the distribution over actions that suits an action space
"""

from typing import Any

from hocket.algorithms.a2c import A2C
from hocket.algorithms.dqn import DQN
from hocket.algorithms.impala import IMPALA
from hocket.algorithms.ppo import PPO, RecurrentPPO

__all__ = ["A2C", "ALGORITHMS", "DQN", "IMPALA", "PPO", "RecurrentPPO", "name_of"]

ALGORITHMS = {
    "a2c": A2C,
    "dqn": DQN,
    "impala": IMPALA,
    "ppo": PPO,
    "recurrent-ppo": RecurrentPPO,
}
"""Every algorithm, by its name on the command line."""


def name_of(algorithm: Any) -> str:
    """Return an algorithm's name on the command line, or its class name if it has none."""
    names = {cls: name for name, cls in ALGORITHMS.items()}
    return names.get(type(algorithm), type(algorithm).__name__)
