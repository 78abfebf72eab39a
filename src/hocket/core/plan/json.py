"""A plan as JSON, and back. The graph must be the one that the plan was made for."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hocket.core.graph.trace import Graph
from hocket.core.plan.checks import check
from hocket.core.plan.data import Channel, Launch, Mean, Place, Plan
from hocket.core.plan.schedule import LOCKSTEP, Free, Pair
from hocket.core.program.service import Serving
from hocket.errors import PlanError


def to_json(plan: Plan) -> str:
    """Return the plan as text. `from_json` with the same graph gives it back."""
    pairs = plan.schedule.pairs if isinstance(plan.schedule, Free) else None
    return json.dumps(
        {
            "algorithm": type(plan.graph.algorithm).__name__,
            "num_envs": plan.graph.num_envs,
            "digest": plan.graph.digest,
            "places": [{**vars(p), "on": [str(x) for x in p.on]} for p in plan.places],
            "channels": _dicts(plan.channels),
            "means": _dicts(plan.means),
            "free": pairs and [asdict(pair) for pair in pairs],
            "parts": plan.parts,
            "launch": asdict(plan.launch),
            "serving": asdict(plan.serving),
            "compiler_flags": plan.compiler_flags,
            "notes": list(plan.notes),
            "words": plan.words,
            "ship": list(plan.ship),
        },
        indent=2,
    )


def from_json(text: str, graph: Graph) -> Plan:
    """Return the plan that `to_json` wrote as `text`, after checking it against `graph`."""
    data = json.loads(text)
    if data["digest"] != graph.digest:
        raise PlanError(
            f"the plan was made for {data['algorithm']} with {data['num_envs']} environments "
            f"and graph {data['digest']}, and this is graph {graph.digest} of "
            f"{type(graph.algorithm).__name__} with {graph.num_envs}. Make the plan again."
        )
    pairs = data["free"]
    plan = Plan(
        graph,
        tuple(Place(**place) for place in data["places"]),
        {name: Channel(**channel) for name, channel in data["channels"].items()},
        {place: Mean(**mean) for place, mean in data["means"].items()},
        LOCKSTEP if pairs is None else Free(Pair(**pair) for pair in pairs),
        data["parts"],
        Launch(**data["launch"]),
        Serving(**data["serving"]),
        data["compiler_flags"],
        tuple(data["notes"]),
        data["words"],
        tuple(data["ship"]),
    )
    return check(plan)


def _dicts(named: Any) -> dict[str, Any]:
    return {name: asdict(x) for name, x in named.items()}
