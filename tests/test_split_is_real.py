"""Each instance holds its own fragments and no other's, and what crosses is what the plan says."""

from __future__ import annotations

import pytest

from hocket.core.fragment import Label
from tests.cases import REPLAY_APART, SPLITS, actors, execute

CASES = {
    **{f"ppo, {name}": ("ppo", places) for name, places in SPLITS.items()},
    "ppo, two actors": ("ppo", actors(2)),
    "dqn, replay apart": ("dqn", REPLAY_APART),
}


@pytest.mark.parametrize("case", CASES)
def test_programs_and_bytes(case: str) -> None:
    name, places = CASES[case]
    _, executor = execute(name, places, iterations=2)
    plan = executor.plan
    for instance in executor.crew.instances:
        text = instance.text()
        for label in plan.graph.labels:
            mine = plan.where[label.name] == instance.place
            assert (str(Label(label.name, label.role)) in text) == mine, (instance.name, label)
    counted = executor.nbytes()
    assert counted == {(f.source, f.target): 2 * f.nbytes for f in plan.flows}
    sent = executor.crew.statuses["messages"].sum()
    assert sent == 2 * sum(f.messages for f in plan.flows)


def test_parameters_cross_once_an_iteration() -> None:
    """Not once for every step of the rollout, though acting and stepping are apart."""
    _, executor = execute("ppo", SPLITS["env | act | learn"], iterations=1)
    (flow,) = [f for f in executor.plan.flows if (f.source, f.target) == ("learner", "act")]
    assert flow.messages == 1
