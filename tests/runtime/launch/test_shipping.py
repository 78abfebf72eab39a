"""Algorithms are packed for other processes, or refused if they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import hocket
from tests.faults import two
from tests.toys import Toy


class Unpicklable(Toy):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a lock")


def test_an_algorithm_that_cannot_be_sent() -> None:
    with pytest.raises(
        hocket.PlanError, match=r"^Unpicklable cannot be sent .*: cannot pickle a lock.*threads"
    ):
        hocket.run(Unpicklable(), iterations=1, distribute=two, launch="processes")
