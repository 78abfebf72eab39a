"""Hocket trains reinforcement-learning agents: you write what, a strategy says where."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.core.algorithm import Algorithm, Policy
    from hocket.core.averaged import averaged
    from hocket.core.fragment import fragment
    from hocket.core.graph import Graph, trace
    from hocket.core.plan import Channel, Place, Plan
    from hocket.distribute import strategy
    from hocket.envs import make
    from hocket.errors import ContractError, PlanError
    from hocket.experiment import Settings, train
    from hocket.outcome import Outcome
    from hocket.saved import Run, load
    from hocket.training import Report, Result, iterate, plan, program, run

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Channel",
    "ContractError",
    "Graph",
    "Outcome",
    "Place",
    "Plan",
    "PlanError",
    "Policy",
    "Report",
    "Result",
    "Run",
    "Settings",
    "averaged",
    "fragment",
    "iterate",
    "load",
    "make",
    "plan",
    "program",
    "run",
    "strategy",
    "trace",
    "train",
]

# Imported when first asked for: `hocket --help` needs no JAX, and answers at once.
_HOMES = {
    "core.algorithm": ("Algorithm", "Policy"),
    "core.averaged": ("averaged",),
    "core.fragment": ("fragment",),
    "core.graph": ("Graph", "trace"),
    "core.plan": ("Channel", "Place", "Plan"),
    "distribute": ("strategy",),
    "envs": ("make",),
    "errors": ("ContractError", "PlanError"),
    "experiment": ("Settings", "train"),
    "outcome": ("Outcome",),
    "saved": ("Run", "load"),
    "training": ("Report", "Result", "iterate", "plan", "program", "run"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return vars(importlib.import_module(f"hocket.{home}"))[name]
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")
