"""The examples keep the contract; that they learn is in `test_learning.py`."""

from __future__ import annotations

from examples.sac import SAC

from hocket import make
from hocket.testing import check_algorithm


def test_sac() -> None:
    small = SAC(
        env=make("Pendulum-v1"), hidden=(16,), batch_size=16, updates=4, capacity=1024, warmup=16
    )
    check = check_algorithm(small)
    assert not [name for name in check.unchanged if name.startswith("learner")]
    assert len(check.differences) == 3
    assert "replay" in check.refused["two replicas of the whole loop"]
