"""The refusals of a place's backend: unknown, without work, or not for its devices."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hocket import PlanError
from hocket.core.plan.checks_backend import check_backend
from hocket.core.plan.device_id import device_ids
from hocket.core.program.backend import swappable


def same(_: Any, x: Any) -> tuple[Any, ...]:
    return (x,)


SPRING = swappable("spring")(same)
SPRING.register("wrong", same, platforms=["cpu"])
SPRING.register("elsewhere", same, platforms=["gpu"])


@pytest.mark.parametrize(
    ("name", "devices"),
    [("wrong", ["cpu:0"]), ("elsewhere", ["gpu:1"]), ("elsewhere", [])],
)
def test_a_backend_that_can_run_is_accepted(name: str, devices: list[str]) -> None:
    check_backend(name, {SPRING}, device_ids(devices), "actor")


def test_jax_runs_anything_on_any_devices() -> None:
    check_backend("jax", set(), device_ids(["gpu:0", "gpu:1"]), "learner")


def test_functions_without_that_implementation_do_not_count() -> None:
    """They run as their JAX implementation, wherever the place is."""
    plain = swappable("plain")(same)
    check_backend("wrong", {SPRING, plain}, device_ids(["cpu:0"]), "actor")


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        ("wrnog", [], "unknown backend `wrnog` of the place `actor`. Did you mean `wrong`?"),
        ("wrong", ["gpu:0"], "`spring` is not implemented in `wrong` for gpu"),
        ("wrong", ["cpu:0", "cpu:1"], "XLA cannot split a function implemented in `wrong`"),
        ("right", [], "nothing on the place `actor` is implemented in `right` (`spring` has jax, "),
    ],
)
def test_a_backend_that_cannot_run_is_refused(name: str, devices: list[str], message: str) -> None:
    swappable("other")(same).register("right", same, platforms=["cpu"])
    with pytest.raises(PlanError, match=re.escape(message)):
        check_backend(name, {SPRING}, device_ids(devices), "actor")
