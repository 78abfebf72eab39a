"""Tickets: what a state has in place of what a service keeps, and how a state looks outside."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hocket import PlanError
from hocket.core.program.service import (
    Kept,
    Served,
    is_served,
    parts,
    served_state,
    services,
    ticket_for,
    whole_specs,
)
from tests.core.tiny import BOX, Box

OTHER = Box("other")


def state() -> dict[str, Any]:
    return {"a": ticket_for(BOX), "b": (jnp.ones(3), ticket_for(OTHER)), "c": ticket_for(BOX)}


def test_a_ticket_is_one_number_in_the_state() -> None:
    ticket = ticket_for(BOX)
    (number,) = jax.tree.leaves(ticket)
    assert (number.shape, number.dtype) == ((), jnp.uint32)
    later = jax.tree.map(lambda x: x + 1, ticket)
    assert isinstance(later, Served) and later.by == BOX and int(later.ticket) == 1
    assert jax.tree.structure(ticket) != jax.tree.structure(ticket_for(OTHER))


def test_code_that_reads_the_content_is_told_who_keeps_it() -> None:
    ticket = ticket_for(BOX)
    with pytest.raises(Kept, match=r"a service keeps the box, .* does not have its `size`"):
        _ = ticket.size
    with pytest.raises(PlanError):
        _ = ticket.size
    assert not hasattr(ticket, "size")


def test_a_ticket_can_be_copied() -> None:
    """Python asks for names that begin with `_`, and must hear the usual error."""
    assert copy.deepcopy(ticket_for(BOX)).by == BOX


def test_a_state_has_each_service_once() -> None:
    assert services(state()) == [BOX, OTHER]
    assert services({"x": jnp.ones(3)}) == []


def test_from_outside_a_state_has_the_content() -> None:
    specs = whole_specs(jax.eval_shape(state))
    assert specs["a"] == specs["c"] == BOX.specs()
    assert specs["b"][0].shape == (3,)


def test_what_a_service_keeps_is_one_part() -> None:
    assert [isinstance(part, Served) for part in parts(state())] == [True, False, True, True]


def test_states_leave_to_services_what_they_can_inside_a_context() -> None:
    assert not is_served()
    with served_state():
        assert is_served()
        with served_state(False):
            assert not is_served()
    assert not is_served()
