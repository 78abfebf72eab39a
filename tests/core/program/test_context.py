"""A setting holds inside its context, in one thread, and whatever happens it is given back."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from hocket.core.program.context import setting

NUMBER: ContextVar[int] = ContextVar("number", default=0)


def test_it_holds_inside_and_the_inner_one_first() -> None:
    with setting(NUMBER, 1):
        with setting(NUMBER, 2):
            assert NUMBER.get() == 2
        assert NUMBER.get() == 1
    assert NUMBER.get() == 0


def test_an_error_gives_it_back() -> None:
    with pytest.raises(KeyError), setting(NUMBER, 1):
        raise KeyError
    assert NUMBER.get() == 0


def test_another_thread_does_not_see_it() -> None:
    seen: list[int] = []
    with setting(NUMBER, 1):
        thread = threading.Thread(target=lambda: seen.append(NUMBER.get()))
        thread.start()
        thread.join()
    assert seen == [0]
