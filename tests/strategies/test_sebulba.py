"""The options of `sebulba`, and of free plans by other strategies, that are refused or taken."""

from __future__ import annotations

import re

import pytest
from tests.toys import Toy

from hocket import trace
from hocket.cluster import Cluster
from hocket.core.plan.device_id import device_ids
from hocket.strategies import resolve

OPTIONS = {
    "sebulba:lag=fre": "`lag` of the strategy `sebulba` must be a whole number, or `free`",
    "sebulba:lag=1,max_age=3": "max_age=3 is for lag=free, but lag=1",
    "sebulba:batch=3": "batch=3 does not divide the 8 environments",
    "sebulba:actors=9": "actors=9 must be from 1 to 3, the number of devices that can act",
    "sebulba:acting=gpu": "acting='gpu' is unknown: leave it out to act on the actor devices",
    "actor_learner:lag=free,max_age=0": "max_age=0: with 2 replicas of `actor`",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_options_refused(words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(OPTIONS[words])):
        resolve(words)(trace(Toy(), 8), Cluster.local())


def test_options_of_sebulba() -> None:
    graph = trace(Toy(), 8)
    plan = resolve("sebulba:batch=2,acting=cpu")(graph, Cluster.local())
    assert plan.place("actor").replicas == 4 and plan.place("actor").on == device_ids(["cpu:0"])
