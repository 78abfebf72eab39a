"""The services of a run: they take their part of a state, and give it back."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from hocket.core.program.service import At, Served, Serving, ticket_for
from hocket.runtime.host_calls.services import Services

HOW = Serving("shm", shards=2)


class LiveShelf:
    """A running service; its content is what was loaded last."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []
        self.is_closed = False

    def load(self, content: Any) -> None:
        self.loaded.append(content)

    def content(self) -> Any:
        assert not self.is_closed
        return self.loaded[-1]

    def addresses(self) -> Sequence[str]:
        return [f"address {len(self.loaded)}"]

    def close(self) -> None:
        self.is_closed = True


class Shelf:
    """A service that notes how it was started."""

    name = "shelf"

    def __init__(self) -> None:
        self.started: list[Serving] = []
        self.live = LiveShelf()

    def specs(self) -> Any:
        return jax.ShapeDtypeStruct((3,), np.float32)

    def check(self, how: Serving, given: Any = ()) -> None: ...

    def about(self, how: Serving) -> str:
        return self.name

    def start(self, how: Serving) -> Any:
        self.started.append(how)
        return self.live


def services_of(*shelves: Shelf, free: Any = None) -> tuple[Services, Any]:
    """Return the services of a plan, and its first state: a number, and a ticket for each."""
    state = {"w": 1.0, **{f"shelf {k}": ticket_for(shelf) for k, shelf in enumerate(shelves)}}
    plan: Any = SimpleNamespace(graph=SimpleNamespace(state=state), serving=HOW, free=free)
    return Services(plan), state


def test_a_service_takes_its_part_and_leaves_a_ticket() -> None:
    shelf = Shelf()
    services, state = services_of(shelf)
    content = np.arange(3.0)
    kept = services.load({**state, "shelf 0": content})
    assert shelf.started == [HOW] and shelf.live.loaded == [content]
    assert kept["w"] == 1.0 and isinstance(kept["shelf 0"], Served)
    assert int(kept["shelf 0"].ticket) == 0 and kept["shelf 0"].by is shelf
    whole = services.whole(kept)
    assert whole["shelf 0"] is content and whole["w"] == 1.0


def test_the_first_state_empties_a_service_which_is_started_once() -> None:
    shelf = Shelf()
    services, state = services_of(shelf)
    services.load({**state, "shelf 0": np.ones(3)})
    services.load(state)
    assert shelf.started == [HOW] and shelf.live.loaded[-1] is None


@pytest.mark.parametrize("free", [None, "a learner and its makers"])
def test_an_instance_here_has_the_service_itself(free: Any) -> None:
    shelf = Shelf()
    services, state = services_of(shelf, free=free)
    services.load(state)
    assert services.at(3)(shelf) == At(shelf.live, HOW, 3, in_order=free is None)


def test_an_instance_elsewhere_has_the_addresses() -> None:
    shelf = Shelf()
    services, state = services_of(shelf)
    services.load(state)
    find = pickle.loads(pickle.dumps(services.elsewhere(2)))
    assert find(shelf) == At(["address 1"], HOW, 2)


@pytest.mark.parametrize("keep", [True, False])
def test_the_last_content_can_outlive_the_services(keep: bool) -> None:
    one, other = Shelf(), Shelf()
    services, state = services_of(one, other)
    kept = services.load({**state, "shelf 0": np.ones(3), "shelf 1": np.zeros(3)})
    services.close(keep=keep)
    assert one.live.is_closed and other.live.is_closed
    if keep:
        assert services.whole(kept)["shelf 0"] is one.live.loaded[0]
        assert services.whole(kept)["shelf 1"] is other.live.loaded[0]
    services.close()  # nothing is left to close


def test_without_services_a_state_is_left_as_it_is() -> None:
    services, state = services_of()
    assert not services
    assert services.load(state) is state and services.whole(state) is state
    assert services_of(Shelf())[0]
