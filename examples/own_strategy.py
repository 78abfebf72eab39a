"""Example of a strategy, in fifteen lines: many actors beside a learner.

hocket plan ppo --distribute examples/own_strategy.py:wide
hocket train ppo --distribute examples/own_strategy.py:wide:actors=8,lag=1
"""

import hocket
from hocket import Channel, Place, Plan
from hocket.testing import check_strategy


@hocket.strategy
def wide(graph, cluster, *, actors=4, lag=0):
    """Actors on the first device, the learner on the last, parameters `lag` iterations old."""
    return Plan(
        graph,
        places=[
            Place("actor", run=("env", "act"), on=cluster.devices[:1], replicas=actors),
            Place("learner", run=("learn", "gradient", "replay"), on=cluster.devices[-1:]),
        ],
        channels={"learner -> actor": Channel(lag=lag)},
    )


if __name__ == "__main__":
    print(check_strategy(wide()))  # the same numbers as one program, for every algorithm
