"""Hocket trains reinforcement-learning agents: an algorithm says what to compute, a strategy where.

    cli/  training/               the command line, and the functions that a program calls
    algorithms/  envs/  replay/   what is computed, with networks (nn/) and maths (ops/)
    strategies/  cluster/         where it runs, and on which hardware
    runtime/                      carries out a plan
    core/                         programs, graphs and plans: what algorithms and strategies share
    system/  report/              services of the operating system, and everything a person sees
    testing/                      conformance kits for algorithms, strategies, launchers, ...
    errors.py                     the wording of error messages

The public names are below. `docs/architecture.md` follows one rollout through all packages.
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

# Each name is imported on first use, so that `hocket --help` answers without importing JAX.
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
