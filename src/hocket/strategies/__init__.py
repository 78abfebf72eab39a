"""Strategies decide where the fragments of a graph run. Each is one function in one file.

strategy.py           the protocol of strategies, and how to find one by its name
anakin.py             one program on all devices
actor_learner.py      actors beside a learner
central_inference.py  environments around one place that acts and learns
data_parallel.py      replicas of the whole loop
sebulba.py            environments on threads of the host
apex.py               actors around a replay service
sliced.py             any of these on slices of a device
sharing.py            how strategies share out devices, and exchange samples
"""

from hocket.strategies.actor_learner import actor_learner
from hocket.strategies.anakin import anakin
from hocket.strategies.apex import apex
from hocket.strategies.central_inference import central_inference
from hocket.strategies.data_parallel import data_parallel
from hocket.strategies.sebulba import sebulba
from hocket.strategies.sliced import sliced
from hocket.strategies.strategy import Strategy, options_text, resolve, strategies, strategy

__all__ = [
    "Strategy",
    "actor_learner",
    "anakin",
    "apex",
    "central_inference",
    "data_parallel",
    "options_text",
    "resolve",
    "sebulba",
    "sliced",
    "strategies",
    "strategy",
]
