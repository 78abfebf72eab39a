from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hocket import trace
from hocket.core.graph.digest import digest_of
from hocket.system.on_host import on_host
from hocket.system.text import bytes_text
from tests.toys import Toy, ToyState

TEXT = """\
Toy: 8 environments, 24 environment steps an iteration, state 216 B
  repeat 3 times
    act (act)                            in      144 B   out       32 B
    env (env)                            in      224 B   out      128 B
  update (learn)                         in      408 B   out       28 B"""


def test_text() -> None:
    assert str(trace(Toy(), 8)) == TEXT


def test_labels_and_steps() -> None:
    graph = trace(Toy(length=5), 4)
    assert [(x.name, x.role) for x in graph.labels] == [
        ("act", "act"), ("env", "env"), ("update", "learn"),
    ]  # fmt: skip
    assert graph.env_steps == 20


def test_numbers_do_not_depend_on_the_number_of_environments() -> None:
    graph = trace(Toy(), 8)
    other = graph.at(2)
    assert [(n.title, n.ins, n.outs) for n in graph.nodes] == [
        (n.title, n.ins, n.outs) for n in other.nodes
    ]
    assert graph.at(8) is graph
    assert graph.at(2) is other


def test_another_size_lives_as_long_as_the_graph_it_is_of() -> None:
    """The program of a step may hold gigabytes of constants, which must not outlive it."""
    graph = trace(Toy(), 8)
    both = [weakref.ref(graph), weakref.ref(graph.at(2))]
    assert both[1]() is graph.at(2)
    del graph
    gc.collect()
    assert [found() for found in both] == [None, None]


def test_a_walk_finds_every_node_and_how_often_it_runs() -> None:
    class Nested(Toy):
        def seen(self, xs: Any) -> Any:
            def inner(x: Any, _: None) -> Any:
                return self.act(jnp.eye(4), x), None

            def outer(x: Any, _: None) -> Any:
                return lax.scan(inner, x, None, 2)[0], None

            return lax.scan(outer, xs, None, 5)[0]

    graph = trace(Nested(), 8)
    often = {node.id: times for node, times in graph.block.walk()}
    assert sorted(often) == [node.id for node in graph.nodes]
    calls = [often[n.id] for n in graph.nodes if n.title == "act"]
    assert calls == [3, 10]


def test_digest_knows_what_was_closed_over() -> None:
    def made(last: float) -> str:
        class Closing(Toy):
            def seen(self, xs: Any) -> Any:
                return xs * jnp.array([[[1.0, 2.0, 3.0, last]]])

        return trace(Closing(), 8).digest

    assert made(4.0) == made(4.0) != made(5.0)


def test_digest() -> None:
    assert trace(Toy(), 8).digest == trace(Toy(), 8).digest
    assert (
        len({trace(Toy(), 8).digest, trace(Toy(), 4).digest, trace(Toy(length=2), 8).digest}) == 3
    )


def test_digest_is_of_what_is_computed_whoever_shares_a_function() -> None:
    """Two calls may or may not share one traced function, by what jax has traced before."""

    def made() -> Any:
        def twice(x: Any) -> Any:
            return x + x

        return jax.jit(twice)

    shared = made()
    one = jax.make_jaxpr(lambda x: shared(shared(x)))(1.0)
    other = jax.make_jaxpr(lambda x: made()(made()(x)))(1.0)
    assert str(one) != str(other)
    assert digest_of(one, ["x"]) == digest_of(other, ["x"]) != digest_of(other, ["y"])


def test_digest_knows_who_reads_what() -> None:
    def made(i: int, j: int) -> str:
        def program(*xs: Any) -> Any:
            ys = [x * 2 for x in xs]
            return [y * 3 for y in ys][i] + ys[j]

        return digest_of(jax.make_jaxpr(program)(*[1.0] * 5), [])

    assert len({made(i, j) for i in range(5) for j in range(5)}) == 25


def test_tracing_computes_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(on_host(), nullcontext)  # everything is on the host in tests
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with jax.default_device(jax.devices()[1]):
        assert isinstance(on_host(), nullcontext)  # the user has chosen a device
    with on_host():
        assert jnp.zeros(3).devices() == {jax.devices("cpu")[0]}

    def no_cpu(**_: Any) -> Any:
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    assert isinstance(on_host(), nullcontext)


class Jitted(Toy):
    def step(self, state: ToyState) -> Any:
        return jax.jit(super().step)(state)


def test_a_jitted_function_that_calls_fragments_is_read_through() -> None:
    assert trace(Jitted(), 8).labels == trace(Toy(), 8).labels


class Nested(Toy):
    def step(self, state: ToyState) -> Any:
        from hocket import fragment

        return fragment(role="learn", name="all")(super().step)(state)


def test_nested_fragments_are_part_of_the_outer_one() -> None:
    graph = trace(Nested(), 8)
    assert [label.name for label in graph.labels] == ["all"]
    assert graph.env_steps == 24


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_bytes_text(n: int, text: str) -> None:
    assert bytes_text(n) == text
