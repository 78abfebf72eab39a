"""Choices for the hardware, which hold while a program is traced."""

from __future__ import annotations

import pytest

from hocket.core.program.tuning import MOST_UNROLLED, PLAIN, Tuning, tuned, tuning


def test_without_a_choice_a_program_is_plain() -> None:
    assert tuning() == PLAIN == Tuning(unroll=1, kernels=False)


def test_a_choice_holds_inside_its_context() -> None:
    with tuned(Tuning(unroll=MOST_UNROLLED)):
        with tuned(Tuning(kernels=True)):
            assert tuning() == Tuning(unroll=1, kernels=True)  # a choice is whole
        assert tuning().unroll == MOST_UNROLLED
    assert tuning() is PLAIN


def test_an_error_ends_it() -> None:
    with pytest.raises(KeyError), tuned(Tuning(unroll=2)):
        raise KeyError
    assert tuning() is PLAIN
