"""A policy is called with or without a memory: without, it is at the start of an episode."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.core.program.algorithm import Policy


def counted(obs: Any, memory: Any, key: Any) -> tuple[Any, Any]:
    return (obs, key), memory + 1


@pytest.mark.parametrize(("given", "after"), [((), 6), ((7,), 8), ((0,), 1)])
def test_a_memory_is_passed_on_or_the_first_one(given: tuple[int, ...], after: int) -> None:
    action, memory = Policy(counted, memory=5)("seen", *given)
    assert action == ("seen", None)
    assert memory == after


def test_a_policy_without_memory_is_given_none() -> None:
    policy = Policy(lambda obs, memory, key: ((obs, memory, key), memory))
    assert policy("seen", key="a key") == (("seen", None, "a key"), None)
