"""Hocket trains reinforcement-learning agents: you write what, a strategy says where."""

from hocket.core.algorithm import Algorithm, Policy
from hocket.core.averaged import averaged
from hocket.core.fragment import fragment
from hocket.core.graph import Graph, trace
from hocket.core.plan import Channel, Place, Plan
from hocket.distribute import strategy
from hocket.envs import make
from hocket.errors import ContractError, PlanError
from hocket.run import Report, Result, iterate, plan, program, run

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Channel",
    "ContractError",
    "Graph",
    "Place",
    "Plan",
    "PlanError",
    "Policy",
    "Report",
    "Result",
    "averaged",
    "fragment",
    "iterate",
    "make",
    "plan",
    "program",
    "run",
    "strategy",
    "trace",
]
