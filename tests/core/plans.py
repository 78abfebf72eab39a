"""Places and plans of toys, for tests of core."""

from __future__ import annotations

from typing import Any

from hocket import Place, Plan, averaged, trace
from hocket.core.plan.checks import check
from tests.toys import Toy

ALL = ("env", "act", "learn")
ACTOR, LEARNER = Place("actor", ("env", "act")), Place("learner", ("learn",))
ENV, ACT = Place("env", ("env",)), Place("act", ("act",))
SPLIT, APART = (ACTOR, LEARNER), (ENV, ACT, LEARNER)
ACTORS = (Place("actor", ("env", "act"), replicas=2), LEARNER)
WHOLE = (Place("all", ALL, replicas=2),)


class Crowd(Toy):
    """Every environment moves with the mean of all."""

    def noise(self, x: Any, keys: Any) -> Any:
        return Toy.noise(self, x, keys) + x.mean(0)[None]


class AveragedCrowd(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return Toy.noise(self, x, keys) + averaged(x.mean(0))[None]


def checked(algorithm: Any, places: tuple[Place, ...], num_envs: int = 8) -> Plan:
    """Return a plan that was not refused."""
    return check(Plan(trace(algorithm, num_envs), places))
