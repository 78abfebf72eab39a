"""The results of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.runtime.executor import Timings
from hocket.training.report import Result


def result(seeds: int | None) -> Result:
    nothing: Any = None
    return Result(nothing, nothing, np.zeros(2), {}, env_steps=8, timings=Timings(), seeds=seeds)


def test_an_agent_that_was_not_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="no agent 2: this run trained agents 0 to 1"):
        result(2).agent(2)
    with pytest.raises(ValueError, match="no agent 0: this run trained 1 agent, this result"):
        result(None).agent(0)


def test_several_agents_have_no_single_policy() -> None:
    with pytest.raises(ValueError, match=r"2 agents were trained, .* use `result.agent\(0\)"):
        _ = result(2).policy
