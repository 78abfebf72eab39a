"""Hocket trains reinforcement-learning agents: you write what, a strategy says where.

    cli/  training/               what a person types, and what a program calls
    algorithms/  envs/  replay/   what is computed, with its networks (nn/) and its maths (ops/)
    strategies/  cluster/         where it runs, on which hardware
    runtime/                      carries a plan out
    core/                         programs, graphs and plans, between the two columns
    system/  report/              what the operating system gives, and what a person sees
    testing/                      conformance kits for what users write
    errors.py                     how a mistake is worded

The public names are below. `docs/architecture.md` follows one rollout through the house.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.core.graph.trace import Graph, trace
    from hocket.core.plan.checks import check
    from hocket.core.plan.data import Channel, Mean, Place, Plan
    from hocket.core.plan.schedule import Free, Lockstep, Pair
    from hocket.core.program.algorithm import Algorithm, Policy
    from hocket.core.program.averaged import averaged
    from hocket.core.program.fragment import fragment
    from hocket.envs import make
    from hocket.errors import ContractError, PlanError
    from hocket.report.outcome import Outcome
    from hocket.strategies import strategy
    from hocket.training.keep import train
    from hocket.training.load import Run, load
    from hocket.training.loop import iterate, plan, program, run
    from hocket.training.report import Report, Result
    from hocket.training.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Channel",
    "ContractError",
    "Free",
    "Graph",
    "Lockstep",
    "Mean",
    "Outcome",
    "Pair",
    "Place",
    "Plan",
    "PlanError",
    "Policy",
    "Report",
    "Result",
    "Run",
    "Settings",
    "averaged",
    "check",
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
    "core.graph.trace": ("Graph", "trace"),
    "core.plan.checks": ("check",),
    "core.plan.data": ("Channel", "Mean", "Place", "Plan"),
    "core.plan.schedule": ("Free", "Lockstep", "Pair"),
    "core.program.algorithm": ("Algorithm", "Policy"),
    "core.program.averaged": ("averaged",),
    "core.program.fragment": ("fragment",),
    "envs": ("make",),
    "errors": ("ContractError", "PlanError"),
    "report.outcome": ("Outcome",),
    "strategies": ("strategy",),
    "training.keep": ("train",),
    "training.load": ("Run", "load"),
    "training.loop": ("iterate", "plan", "program", "run"),
    "training.report": ("Report", "Result"),
    "training.settings": ("Settings",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return vars(importlib.import_module(f"hocket.{home}"))[name]
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")
