"""Algorithms, one file each.

ppo.py  recurrent_ppo.py  a2c.py  impala.py  dqn.py

actor_critic.py  what those with a policy and a value share: state, agent, one step
proximal.py      what PPO and its recurrent form share: loss and update
heads.py         from a space of actions to a distribution over them
"""

from typing import Any

from hocket.algorithms.a2c import A2C
from hocket.algorithms.dqn import DQN
from hocket.algorithms.impala import IMPALA
from hocket.algorithms.ppo import PPO
from hocket.algorithms.recurrent_ppo import RecurrentPPO

__all__ = ["A2C", "ALGORITHMS", "DQN", "IMPALA", "PPO", "RecurrentPPO", "name_of"]

ALGORITHMS = {
    "a2c": A2C,
    "dqn": DQN,
    "impala": IMPALA,
    "ppo": PPO,
    "recurrent-ppo": RecurrentPPO,
}
"""Every algorithm by the name that the command line has for it."""


def name_of(algorithm: Any) -> str:
    """The name of an algorithm; of one that is not ours, its class."""
    names = {cls: name for name, cls in ALGORITHMS.items()}
    return names.get(type(algorithm), type(algorithm).__name__)
