"""Processes compute what threads compute, share one clock, and end when the run does."""

from __future__ import annotations

import time
from typing import Any

import jax
import pytest

import hocket
from hocket import Channel, Place, Plan, fragment
from hocket.runtime.launch import Command, Fate, Seat
from hocket.runtime.launch.launchers.processes import Processes
from hocket.runtime.launch.watch import fate_of
from hocket.testing import difference
from tests.toys import Toy

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# Several places, replicas and devices; keys cross from the first place to the second.
PLACES = (
    Place("env", ("env",), replicas=2),
    Place("act", ("act",)),
    Place("learner", ("learn",), on=("cpu:0", "cpu:1")),
)


def test_processes_compute_what_threads_compute() -> None:
    """The algorithm is defined here, so that no other process can import it."""

    class Noisy(Toy):
        @fragment(role="act")
        def choose(self, w: Any, x: Any, keys: Any) -> Any:
            noise = jax.vmap(lambda key: jax.random.normal(key))(keys)
            return x @ w + 0.1 * noise

        @fragment(role="env")
        def draw(self, keys: Any) -> Any:
            both = jax.vmap(jax.random.split)(keys)
            return both[:, 0], both[:, 1]

        def step(self, state: Any) -> Any:
            def one(carry: Any, _: None) -> Any:
                x, keys = carry
                keys, used = self.draw(keys)
                return (self.env(x, self.choose(state.w, x, used), used), keys), x

            (x, keys), xs = jax.lax.scan(one, (state.x, state.keys), None, self.length)
            w, key, loss = self.update(state.w, state.key, xs)
            return state._replace(x=x, keys=keys, w=w, key=key), {"loss": loss, "x": x.sum(-1)}

    def places(graph: Any, cluster: Any) -> Plan:
        return Plan(graph, PLACES, {"env -> act": Channel(capacity=2)})

    begin = time.perf_counter()
    one = hocket.run(Noisy(), iterations=20, distribute=places, exact=True)
    many = hocket.run(
        Noisy(), iterations=20, distribute=places, exact=True, launch="processes", record=True
    )  # fmt: skip
    assert difference((one.state, one.metrics), (many.state, many.metrics)) == 0.0
    values = one.plan.graph.values
    crossing = [values[v].dtype for t in one.plan.projection.transfers for v in t.values]
    assert any(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) for dtype in crossing)

    timeline = many.timeline
    assert timeline is not None
    assert timeline.instances == ("env/0", "env/1", "act/0", "learner/0")
    times = [t for span in timeline.spans for t in (span.start, span.end)]
    assert begin < min(times) and max(times) < time.perf_counter()
    # No message arrives before it was sent: all instances look at one clock.
    sent = {s.name: s.start for s in reversed(timeline.spans) if s.kind == "send"}
    received = {s.name: s.end for s in reversed(timeline.spans) if s.kind == "receive"}
    assert sent.keys() == received.keys() and len(sent) >= 8
    assert all(sent[name] < received[name] for name in sent)


def started(script: str, stdin: bytes = b"") -> Any:
    command = Command(("/bin/sh", "-c", script), {"GREETING": "unix:here"}, stdin)
    return Processes().start(Seat("actor/0", ("actor/0",)), command)


def test_a_seat_is_a_process() -> None:
    """It has its environment and its input, and its last words are kept."""
    member = started('read name; echo "$GREETING/$name"; echo oops >&2; exit 3', b"actor\n")
    assert member.hello(60) == "unix:here/actor"
    assert fate_of(member, 60) == Fate(f"process {member.pid} ended with code 3", "oops\n")


def test_a_process_that_hangs_is_killed() -> None:
    member = started("exec sleep 600")
    assert member.poll() is None
    with pytest.raises(TimeoutError):
        member.hello(0.0)
    assert member.kill(60)
    assert fate_of(member, 60) == Fate(f"process {member.pid} was killed by SIGKILL")
