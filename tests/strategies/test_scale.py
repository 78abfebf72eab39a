"""Plans of 1,024 instances on 64 nodes with 8 GPUs each: made, checked, printed and drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cases import SMALL
from tests.clusters import gpus
from tests.toys import Toy

from hocket import Mean, PlanError, trace
from hocket.cli.picture import draw_plan
from hocket.core.graph.trace import Graph
from hocket.core.plan.json import from_json, to_json
from hocket.core.plan.nodes import Rates
from hocket.core.plan.text import plan_text
from hocket.runtime.launch.seats import seats_of
from hocket.runtime.refusals import refuse
from hocket.strategies import resolve, strategies

ROOT = Path(__file__).parents[2]
NODES = gpus(*[8] * 64)
RATES: Rates = {(a.name, b.name): (5e-6, 1e9) for a in NODES.nodes for b in NODES.nodes}
MOST_SECONDS, MOST_BYTES = 10.0, 2 * 2**30
LARGE = {
    "actor_learner": ("actor_learner:actors=1023", 1023),
    "central_inference": ("central_inference:envs=1023", 2046),
    "data_parallel": ("data_parallel:replicas=1024", 1024),
    "sebulba": ("sebulba:batch=1", 1023),
}
"""For each strategy that runs on a cluster, its words and the number of environments."""
NOT_ON_NODES = {
    "anakin": "on a cluster each replica is a process of one node",
    "apex": "a replay service can be reached on the machine of the run alone",
    "sliced": "is a slice on another node, where none can be made yet",
}


def test_every_strategy_is_tested() -> None:
    ours = {n for n, made in strategies().items() if made.__module__.startswith("hocket.")}
    assert LARGE.keys() | NOT_ON_NODES.keys() == ours


@pytest.mark.parametrize("name", NOT_ON_NODES)
def test_a_strategy_that_cannot_use_nodes_says_so_in_few_words(name: str) -> None:
    dqn: Any = SMALL["dqn"]()
    algorithm = replace(dqn, capacity=1 << 16) if name == "apex" else Toy()
    with pytest.raises(PlanError, match=NOT_ON_NODES[name]) as raised:
        resolve("apex:lag=0" if name == "apex" else name)(trace(algorithm, 1024), NODES)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("name", LARGE)
def test_equal_instances_and_nodes_are_one_line(name: str) -> None:
    words, num_envs = LARGE[name]
    shown = everything(words, trace(Toy(), num_envs))
    assert 1023 <= shown["instances"] <= 1024
    assert shown["lines"] <= 30 and shown["width"] <= 140
    assert shown["svg"] < 12_000


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
@pytest.mark.parametrize("name", LARGE)
def test_seconds_and_memory(name: str, algorithm: str) -> None:
    words, num_envs = LARGE[name]
    command = [sys.executable, "-m", __name__, words, str(num_envs), algorithm]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=90)
    shown = json.loads(done.stdout)
    assert shown["seconds"] <= MOST_SECONDS and shown["bytes"] <= MOST_BYTES, shown


def everything(words: str, graph: Graph) -> dict[str, int]:
    """Make a plan, check it, and show it in every way. Return the sizes of what is shown."""
    plan = resolve(words)(graph, NODES)
    # No built-in way averages the arrays of GPUs on several nodes.
    own = Mean(way=f"{ROOT}/examples/own_average.py:Fifo")
    plan = replace(plan, means=dict.fromkeys(plan.averaging, own))
    refuse(plan, NODES)
    again = from_json(to_json(plan), graph)
    assert again.places == plan.places
    count = sum(plan.instances(place.name) for place in plan.places)
    assert sum(len(seat.instances) for seat in seats_of(plan)) == count
    lines = plan_text(plan, RATES).splitlines()
    return {
        "instances": count,
        "lines": len(lines),
        "width": max(map(len, lines)),
        "svg": len(draw_plan(plan, RATES)),
    }


def main(words: str, num_envs: str, algorithm: str) -> None:
    """Print the sizes, seconds and bytes of a plan as JSON."""
    import resource
    import time

    begin = time.monotonic()
    shown = everything(words, trace(SMALL[algorithm](), int(num_envs)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = time.monotonic() - begin
    sys.stdout.write(json.dumps({**shown, "seconds": seconds, "bytes": memory}))


if __name__ == "__main__":
    main(*sys.argv[1:])
