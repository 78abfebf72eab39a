"""Graphs in which a service keeps a part of the state, and the refusal of those that have none."""

from __future__ import annotations

import pytest

from hocket import ContractError, PlanError
from hocket.core.graph.host_calls import host_call
from hocket.core.graph.served import only_gives, served, writers
from hocket.core.program.service import Served, services
from tests.core.tiny import BOX, State, act, get, put, swap, titled, traced


def filled(s: State) -> tuple[State, State]:
    box = put(s["box"], s["x"])
    return {"x": get(box, s["x"]), "box": box}, {}


def test_a_part_that_a_service_can_keep_becomes_a_ticket() -> None:
    plain = traced(filled, "x box")
    graph = served(plain)
    assert services(plain.state) == [] and services(graph.state) == [BOX]
    assert isinstance(graph.state["box"], Served)
    assert graph.served and served(graph) is graph
    assert [n.title for n in graph.nodes if host_call(n)] == ["put", "get"]


def test_a_state_with_nothing_to_keep_is_refused() -> None:
    graph = traced(lambda s: ({"x": act(s["x"])}, {}), "x")
    with pytest.raises(PlanError, match="Tiny has no replay that a service could keep"):
        served(graph)


def test_two_parts_of_one_name_are_refused() -> None:
    graph = traced(lambda s: ({**filled(s)[0], "box2": s["box2"]}, {}), "x box box2")
    with pytest.raises(ContractError, match=r"two parts named `box`.*give one of them another"):
        served(graph)


def test_a_step_that_uses_an_old_ticket_is_refused() -> None:
    def run(s: State) -> tuple[State, State]:
        return {"box": put(s["box"], s["x"]), "x": get(put(s["box"], s["x"]), s["x"])}, {}

    with pytest.raises(ContractError, match="as it was before a change"):
        served(traced(run, "x box"))


def test_a_writer_gives_and_asks_for_nothing() -> None:
    def run(s: State) -> tuple[State, State]:
        box, x = swap(put(s["box"], s["x"]), s["x"])
        return {"box": box, "x": get(box, x)}, {}

    graph = traced(run, "x box", served=True)
    assert writers(graph) == ("put",)
    gives = {title: host_call(titled(graph.nodes, title)) for title in ("put", "swap", "get")}
    assert [bool(call and only_gives(call)) for call in gives.values()] == [True, False, False]
