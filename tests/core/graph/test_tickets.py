"""Steps use what a service keeps in the order of its versions, or are refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from hocket import ContractError, fragment
from hocket.core.graph.tickets import check_tickets
from hocket.core.program.service import Served
from tests.core.tiny import BOX, LENGTH, State, Step, call_box, get, put, swap, traced


def once(s: State) -> tuple[State, State]:
    x = get(s["box"], s["x"])  # the old version, before it is changed
    box, x = swap(put(s["box"], x), x)
    return {"box": box, "x": get(box, get(box, x))}, {}


def in_a_loop(s: State) -> tuple[State, State]:
    def one(carry: Any, _: None) -> Any:
        return swap(*carry), None

    (box, x), _ = lax.scan(one, (s["box"], s["x"]), None, LENGTH)
    return {"box": box, "x": get(box, x)}, {}


def read_by_a_loop(s: State) -> tuple[State, State]:
    """A loop may read the same version in every pass, and pass it on."""

    def one(carry: Any, _: None) -> Any:
        box, x = carry
        return (box, get(s["box"], get(box, x))), None

    (box, x), _ = lax.scan(one, (s["box"], s["x"]), None, LENGTH)
    return {"box": put(box, x), "x": x}, {}


def untouched(s: State) -> tuple[State, State]:
    return {"box": s["box"], "x": get(s["box"], s["x"])}, {}


@pytest.mark.parametrize("run", [once, in_a_loop, read_by_a_loop, untouched])
def test_a_step_that_uses_the_newest_version_is_accepted(run: Step) -> None:
    check_tickets(traced(run, "box x", served=True))


def an_old_version(s: State) -> tuple[State, State]:
    box = put(s["box"], s["x"])
    return {"box": box, "x": get(s["box"], s["x"])}, {}


def an_old_version_after_a_loop(s: State) -> tuple[State, State]:
    after, _ = in_a_loop(s)
    return {**after, "x": get(s["box"], s["x"])}, {}


def an_old_version_in_the_state(s: State) -> tuple[State, State]:
    return {"box": s["box"], "x": get(put(s["box"], s["x"]), s["x"])}, {}


def one_version_in_every_pass(s: State) -> tuple[State, State]:
    def one(x: Any, _: None) -> Any:
        return swap(s["box"], x)[1], None

    return {"box": s["box"], "x": lax.scan(one, s["x"], None, LENGTH)[0]}, {}


def a_reader_besides_the_functions(s: State) -> tuple[State, State]:
    return {"box": s["box"], "x": s["x"] + s["box"].ticket}, {}


@fragment(role="learn")
def more(box: Any, x: Any) -> Any:
    (value,) = call_box("get", box, x)
    return 2 * value


def more_than_a_call(s: State) -> tuple[State, State]:
    return {"box": s["box"], "x": more(s["box"], s["x"])}, {}


def a_ticket_of_its_own(s: State) -> tuple[State, State]:
    return {"box": Served(jnp.zeros((), jnp.uint32), BOX), "x": get(s["box"], s["x"])}, {}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (an_old_version, "^`get` at test_tickets.py:.* uses the box as it was before"),
        (an_old_version_after_a_loop, "^`get` at .* uses the box as it was before"),
        (an_old_version_in_the_state, "^the state that `step` returns uses the box as it was"),
        (one_version_in_every_pass, "^`swap` at .* uses the box as it was before"),
        (
            a_reader_besides_the_functions,
            "call its functions may use it, but .* does not call them",
        ),
        (more_than_a_call, "may use it, but `more` at .* does more: move the rest"),
        (a_ticket_of_its_own, "a state with a `box.ticket` that no function of the box"),
    ],
)
def test_a_step_that_a_service_could_not_serve_is_refused(run: Step, message: str) -> None:
    graph = traced(run, "box x", served=True)
    with pytest.raises(ContractError, match=message):
        check_tickets(graph)
