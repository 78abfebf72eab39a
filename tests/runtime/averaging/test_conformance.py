"""The kit for ways to average: ours pass it, and those that break the contract do not."""

from __future__ import annotations

import pytest

from hocket.errors import ContractError, PlanError
from hocket.testing import average, check_average

BROKEN = "tests.runtime.averaging.broken"


@pytest.mark.parametrize(
    ("name", "on"),
    [
        ("shm", ["cpu:0/cpu:0of2@50%"] * 2),
        ("tcp", ["cpu:0", "cpu:0"]),
        pytest.param("nccl", ["cpu:0", "cpu:1", "cpu:2"], marks=pytest.mark.slow),
    ],
)
def test_our_ways_keep_the_contract(name: str, on: list[str]) -> None:
    check = check_average(name, on)
    assert (check.room > 0) == (name != "tcp") and check.replicas == len(on)
    assert check.difference == 0, "they add up in the order of the replicas, as NumPy does"
    assert "the same bits, and NumPy's means bit for bit; waits end where one leaves" in str(check)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("OWN_NUMBERS", "replica 1 got different bits than replica 0"),
        pytest.param(
            "SUMS",
            r"a mean of float32\[1000\] is 1e\+03 from NumPy's \(allowed: 1e-06\)",
            marks=pytest.mark.slow,
        ),
        pytest.param("CONTENT", "averages arrays of different sizes", marks=pytest.mark.slow),
    ],
)
def test_wrong_means_are_found(name: str, why: str) -> None:
    with pytest.raises(ContractError, match=f"{name}`.*{why}"):
        check_average(f"{BROKEN}:{name}")


def test_who_waits_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average, "WAITING_SECONDS", 4.0)
    with pytest.raises(
        ContractError,
        match=r"PATIENT`: replica 0 still does `wait for a replica that has left` after 4 s",
    ):
        check_average(f"{BROKEN}:PATIENT")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Greedy", "takes 4096 bytes of shared memory, but does not refuse to run where there"),
        ("Vague", "is 'first': it must be an int"),
    ],
)
def test_what_a_way_says_of_itself_is_checked(name: str, why: str) -> None:
    with pytest.raises(ContractError, match=f"{name}` {why}"):
        check_average(f"{BROKEN}:{name}")


def test_a_way_that_cannot_go_there_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot use `ipc` here: it is for a GPU"):
        check_average("ipc")
