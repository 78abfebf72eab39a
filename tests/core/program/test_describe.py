from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import linen

from hocket import make
from hocket.algorithms import DQN, IMPALA, PPO, RecurrentPPO
from hocket.core.program.describe import build, describe
from hocket.envs import Masked
from hocket.nn.layers import MLP
from hocket.system.names import find


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(env=make("CartPole-v1", gravity=1.6), hidden=(8, 16)),
        RecurrentPPO(env=Masked(make("CartPole-v1"), keep=(0, 2))),
        IMPALA(env=make("PositionOnlyCartPole"), memory=8),
        DQN(env=make("gymnax:Breakout-MinAtar", max_steps_in_episode=50)),
        PPO(env=make("Catch"), policy_network=linen.Sequential((MLP((8, 3)), linen.relu))),
    ],
)
def test_an_algorithm_comes_back_from_json(algorithm: Any) -> None:
    again = build(json.loads(json.dumps(describe(algorithm))))
    assert again == algorithm
    assert describe(again) == describe(algorithm)


def test_a_class_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from dataclasses import dataclass\n@dataclass\nclass Mine:\n    x: int = 1\n")
    cls = find(f"{file}:Mine")
    assert cls is find(f"{file}:Mine")  # loaded once
    assert describe(cls(x=2)) == {"class": f"{file}:Mine", "x": 2}
    assert build({"class": f"{file}:Mine", "x": 3}) == cls(x=3)


@dataclass
class Holder:
    thing: Any


def test_what_cannot_be_written_down_is_named() -> None:
    with pytest.raises(ValueError, match=r"`Holder.thing\[1\]` is <object .* Use numbers"):
        describe(Holder((1, object())), "Holder")
    with pytest.raises(ValueError, match="was defined inside a function"):
        describe(Holder(lambda x: x))
    with pytest.raises(ValueError, match="which a configuration file cannot hold"):
        describe(Holder(Holder(1).__eq__))
    assert describe(Holder(np.float32(0.5)))["thing"] == 0.5


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown field `lenght` .* Did you mean `length`"):
        build({"class": "hocket.algorithms.ppo:PPO", "lenght": 3})
    with pytest.raises(ValueError, match=r"there is no module `hocket\.nowhere`"):
        build({"object": "hocket.nowhere:PPO"})
