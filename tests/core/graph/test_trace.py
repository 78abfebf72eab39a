"""The graph of a step: its values, nodes and loops, for any number of environments."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hocket import ContractError, trace
from hocket.core.program.tuning import Tuning
from tests.core.tiny import LENGTH, State, act, env, leaf, learn, only_loop, titled, traced
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
    assert [graph() for graph in both] == [None, None]


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


@pytest.mark.parametrize("num_envs", [0, -1])
def test_no_environments(num_envs: int) -> None:
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        trace(Toy(), num_envs)


class AnotherProgram(Toy):
    def step(self, state: ToyState) -> Any:
        return Toy(length=state.x.shape[0]).step(state)


def test_a_program_that_depends_on_the_number_of_environments() -> None:
    with pytest.raises(ContractError, match="a different program with 4 environments than with 8"):
        trace(AnotherProgram(), 8).at(4)


def test_a_graph_for_some_hardware_is_kept_beside_the_plain_one() -> None:
    graph = trace(Toy(), 8)
    tuned = graph.at(8, Tuning(unroll=3))
    assert tuned is graph.at(8, Tuning(unroll=3)) is not graph
    assert [only_loop(g).eqn.params["unroll"] for g in (graph, tuned)] == [1, 3]
    assert [n.outs for n in tuned.nodes] == [n.outs for n in graph.nodes]


def rollout(s: State) -> tuple[State, State]:
    def one(carry: Any, row: Any) -> Any:
        x, kept = carry
        return (env(x, act(x + row)), kept), x

    (x, kept), xs = lax.scan(one, (s["x"], s["y"]), jnp.ones((LENGTH, 1)))
    return {"x": x, "y": kept, "w": learn(s["w"], xs)}, {"last": x}


def test_a_loop_says_what_each_of_its_values_becomes() -> None:
    graph = traced(rollout, "x y w")
    loop = only_loop(graph)
    assert (loop.length, loop.reverse) == (LENGTH, False)
    (x,) = loop.carry
    assert x.first == leaf(graph, "x") and not x.is_kept
    assert x.next == titled(graph.nodes, "env").outs[0]
    assert leaf(graph, "y") in [const.outside for const in loop.consts]  # jax sees that it is kept
    assert loop.ys[0].row == x.inside
    assert loop.ys[0].after in titled(graph.nodes, "learn").ins
    assert graph.values[loop.ys[0].after].shape == (LENGTH, 4)
    assert len(loop.xs) == 1 and graph.values[loop.xs[0].inside].shape == (1,)
    assert graph.next_state[leaf(graph, "x")] == x.after == graph.reported[0]


def test_values_have_names_for_people() -> None:
    graph = traced(rollout, "x y w")
    names = [graph.values[v].name for v in titled(graph.nodes, "learn").ins]
    assert names == ["w", "x"]  # the stacked rows are of the state that the loop carries
    assert graph.values[titled(graph.nodes, "act").outs[0]].name == "output 0 of `act`"
    assert graph.values[leaf(graph, "x")].nbytes == 4 * 4


def test_a_node_runs_alone() -> None:
    node = titled(traced(rollout, "x y w").nodes, "env")
    (moved,) = node([jnp.arange(4.0), jnp.ones(4)])
    assert moved.tolist() == [1, 2, 3, 4]


def test_a_step_can_be_taken_as_it_was_traced() -> None:
    graph = traced(rollout, "x y w")
    state = {"x": jnp.arange(4.0), "y": jnp.ones(4), "w": jnp.float32(2)}
    expected, traced_again = rollout(state), graph.step(state)
    assert jax.tree.structure(traced_again) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), traced_again, expected))
