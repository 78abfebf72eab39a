"""Plans that cannot run are refused when they are made, by name and with what to do."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, cast

import jax.numpy as jnp
import pytest

from hocket import Channel, Free, Mean, Pair, Place, Plan, PlanError, fragment, trace
from hocket.cluster import Cluster
from hocket.cluster.slices import split
from hocket.core.plan.checks import check
from hocket.core.plan.data import Launch
from hocket.runtime.launch import launch_named
from tests.core.plans import (
    ACT,
    ACTOR,
    ACTORS,
    ALL,
    APART,
    ENV,
    LEARNER,
    SPLIT,
    WHOLE,
    AveragedCrowd,
    Crowd,
    checked,
)
from tests.toys import Toy


def cpus(count: int) -> tuple[str, ...]:
    return tuple(f"cpu:{i}" for i in range(count))


def whole(replicas: int, devices: int = 0) -> tuple[Place, ...]:
    return (Place("all", ("env", "act", "learn"), on=cpus(devices), replicas=replicas),)


REFUSED: dict[str, tuple[tuple[Place, ...], dict[str, Any], str]] = {
    "nobody waits, and no memory is shared": (
        SPLIT, {"launch": Launch("far", one_process=False, one_program=False, shares_memory="none"),
                "schedule": Free(Pair("learner", "actor", max_age=1))},
        "`learner` and `actor` do not wait for each other, which needs shared memory, and "
        "instances of the launcher `far` share none. Use another launcher, or lag=0.",
    ),
    "lag inside a loop": (
        APART, {"channels": {"act -> env": Channel(lag=1)}},
        "the channel `act -> env` cannot be late (lag=1): output 0 of `act` crosses 3 times an "
        "iteration, and only what crosses once can be an iteration old. Put both ends of the loop "
        "on one place, or use lag=0.",
    ),
    "negative lag": (
        SPLIT, {"channels": {"actor -> learner": Channel(lag=-1)}},
        "the channel `actor -> learner` needs an integer capacity >= 1, an integer lag >= 0 and a "
        "finite delay >= 0: found capacity=1, lag=-1 and delay=0.0.",
    ),
    "negative delay": (
        SPLIT, {"channels": {"actor -> learner": Channel(delay=-0.5)}},
        "the channel `actor -> learner` needs an integer capacity >= 1, an integer lag >= 0 and a "
        "finite delay >= 0: found capacity=1, lag=0 and delay=-0.5.",
    ),
    "a mean that lasts for ever": (
        whole(2), {"means": {"all": Mean(delay=float("inf"))}, "launch": launch_named("processes")},
        "the mean of `all` takes a finite delay >= 0, found inf.",
    ),
    "a mean where nobody averages": (
        SPLIT, {"means": {"actor": Mean()}},
        "`actor` averages nothing, so leave it out of `means`. Places that average: none.",
    ),
    "a channel of replicas that average": (
        whole(2), {"channels": {"all -> all": Channel(lag=1)}}, "unknown channel `all -> all`",
    ),
    "a word that is no lag": (
        SPLIT, {"channels": {"learner -> actor": Channel(lag=cast(Any, "free"))}},
        "the channel `learner -> actor` needs an integer capacity >= 1, an integer lag >= 0 and a "
        "finite delay >= 0: found capacity=1, lag='free' and delay=0.0. For places that do not "
        "wait, use a `Free` schedule.",
    ),
    "messages of threads, packed": (
        SPLIT, {"channels": {"actor -> learner": Channel(pack=True)}},
        "the channel `actor -> learner` cannot be packed: within one process arrays ",
    ),
    "a delay that is no number": (
        SPLIT, {"channels": {"actor -> learner": Channel(delay=float("nan"))}},
        "the channel `actor -> learner` needs an integer capacity >= 1, an integer lag >= 0 and a "
        "finite delay >= 0: found capacity=1, lag=0 and delay=nan.",
    ),
    "devices that do not go round": (
        whole(2, devices=3), {},
        "3 devices cannot be shared equally by 2 replicas of `all`: make one number a multiple of "
        "the other.",
    ),
    "environments that do not go round": (
        (dataclasses.replace(ACTOR, on=cpus(3)), LEARNER), {},
        "8 environments cannot be shared equally by the 3 devices of `actor`: choose a multiple of "
        "3.",
    ),
    "environments that the devices of replicas cannot share": (
        (dataclasses.replace(ACTOR, on=cpus(6), replicas=2), LEARNER), {},
        "8 environments cannot be shared equally by the 6 devices of `actor`: choose a multiple of "
        "6.",
    ),
    "a batch that does not go round": (
        (dataclasses.replace(ACTOR, replicas=4), dataclasses.replace(LEARNER, on=cpus(3))),
        {"schedule": Free(Pair("learner", "actor", max_age=4, batch=2))},
        "an iteration of `learner` learns from 4 of 8 environments, which its 3 devices cannot "
        "share equally: choose a multiple of 12 environments.",
    ),
    "several devices for each process that averages": (
        whole(2, devices=4), {"launch": launch_named("processes")},
        "replicas that are processes can average only with one device each, and those of `all` "
        'have 2. Use as many devices as replicas, or launch="threads".',
    ),
    "no parts": (APART, {"parts": 0}, "parts must be at least 1, found 0."),
    "parts where no loop crosses": (
        SPLIT, {"parts": 2},
        "parts=2 cuts loops that cross places, and none does here. Use parts=1.",
    ),
    "parts that do not divide the environments": (
        APART, {"parts": 3},
        "parts=3 must divide the 8 environments that a replica of `env` has on each device: use "
        "another number of parts, or a multiple of 3 environments.",
    ),
    "parts that do not divide those of a device": (
        (dataclasses.replace(ENV, on=cpus(2)), ACT, LEARNER), {"parts": 8},
        "parts=8 must divide the 4 environments that a replica of `env` has on each device: use "
        "another number of parts, or a multiple of 16 environments.",
    ),
    "parts of replicas that are one program": (
        (ENV, Place("rest", ("act", "learn"), replicas=2)), {"parts": 2},
        "the replicas of `rest` are one program, so its loops cannot run in 2 parts. Use parts=1.",
    ),
    "an unknown backend": (
        (dataclasses.replace(ACTOR, backend="cp"), LEARNER), {},
        "unknown backend `cp` of the place `actor`. Did you mean `cpp`?",
    ),
    "a backend that nobody has": (
        (dataclasses.replace(ACTOR, backend="cpp"), LEARNER), {},
        "nothing on the place `actor` is implemented in `cpp`: leave out `backend='cpp'`.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    places, options, message = REFUSED[what]
    with pytest.raises(PlanError, match=f"^{re.escape(message)}"):
        check(Plan(trace(Toy(), 8), places, **options))


def test_parts_of_environments_that_look_at_each_other() -> None:
    graph = trace(Crowd(), 8)
    assert check(Plan(graph, APART))
    with pytest.raises(
        PlanError,
        match=r"output 0 of `env`, in a loop that runs in 2 parts.*Crowd\.noise.*mean over",
    ):
        check(Plan(graph, APART, parts=2))


def test_parts_of_environments_that_average() -> None:
    """`averaged` is the mean over replicas. Parts are not replicas."""
    with pytest.raises(PlanError, match=r"averages over environments in a loop.*Use parts=1"):
        check(Plan(trace(AveragedCrowd(), 8), APART, parts=2))


@pytest.mark.parametrize("places", [ACTORS, WHOLE, SPLIT])
def test_the_right_one_is_accepted(places: tuple[Place, ...]) -> None:
    assert checked(Toy(), places).places == places


def test_an_unknown_name_in_run() -> None:
    with pytest.raises(
        PlanError, match=r"unknown fragment or role `lern` in `run` of the place `a`.*`learn`"
    ):
        checked(Toy(), (Place("a", run=("env", "act", "lern")),))


def test_a_place_without_work() -> None:
    with pytest.raises(PlanError, match="`store` runs no fragment"):
        checked(Toy(), (*SPLIT, Place("store", run=("replay",))))


def test_environments_that_cannot_be_shared() -> None:
    with pytest.raises(
        PlanError, match="9 environments cannot be shared equally by 2 replicas of `actor`"
    ):
        checked(Toy(), ACTORS, num_envs=9)


class TwoLearners(Toy):
    """A learner without `averaged`, so that its replicas do not run as one program."""

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w, key, jnp.zeros(())


def test_replicas_that_cannot_be_routed() -> None:
    places = (Place("a", run=("env", "act"), replicas=2), Place("l", run=("learn",), replicas=3))
    with pytest.raises(PlanError, match="one number a multiple of the other"):
        checked(TwoLearners(), places, num_envs=12)


def test_channels_are_checked() -> None:
    graph = trace(Toy(), 8)
    with pytest.raises(PlanError, match=r"unknown channel `actor -> lerner`.*`actor -> learner`"):
        check(Plan(graph, SPLIT, {"actor -> lerner": Channel()}))
    with pytest.raises(PlanError, match="capacity >= 1"):
        check(Plan(graph, SPLIT, {"actor -> learner": Channel(capacity=0)}))


def test_names_of_places() -> None:
    with pytest.raises(PlanError, match="different names"):
        check(Plan(trace(Toy(), 8), (SPLIT[0], dataclasses.replace(SPLIT[1], name="actor"))))


def test_a_slice_is_no_threads_device() -> None:
    parts = split(Cluster.local().devices[0], 2)
    graph = trace(Toy(), 8)
    with pytest.raises(PlanError, match=r"is a slice.*launch=\"processes\""):
        check(Plan(graph, (Place("all", ALL, parts, replicas=2),)))
    with pytest.raises(PlanError, match="would have 2 slices, and a process can have only one"):
        check(Plan(graph, (Place("all", ALL, parts),), launch=launch_named("processes")))


def test_flags_of_xla_are_for_processes() -> None:
    with pytest.raises(PlanError, match=r"--xla_x.*XLA_FLAGS yourself"):
        check(Plan(trace(Toy(), 8), (Place("all", ALL),), compiler_flags="--xla_x"))
