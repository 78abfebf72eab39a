"""Small Gymnasium environments that do one thing wrong, or have unusual spaces.

Importing this module registers them.
"""

import os
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np


class Counter(gym.Env[Any, Any]):
    """Observes the number of steps in its episode. It reuses one array for all observations."""

    observation_space = gym.spaces.Box(0.0, 100.0, (2,), np.float64)
    action_space: gym.Space[Any] = gym.spaces.Discrete(3, start=5)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(
        self, wrong: str = "", at: int = 3, length: int = 5, render_mode: str | None = None
    ) -> None:
        self.wrong, self.at, self.length, self.render_mode = wrong, at, length, render_mode
        self.obs: Any = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.obs[:] = 0.0, self.np_random.uniform()
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.obs[0] += 1.0
        count = int(self.obs[0])
        if self.wrong and count == self.at:
            return self.go_wrong()
        return self.obs, float(action), count >= self.length, False, {}

    def render(self) -> Any:
        return np.full((20, 30, 3), 10 * int(self.obs[0]), np.uint8)

    def go_wrong(self) -> Any:
        match self.wrong:
            case "raises":
                raise ZeroDivisionError("the pole is gone")
            case "hangs":
                time.sleep(600.0)
            case "dies":
                os.write(2, b"a hole in the hull\n")
                os._exit(3)
            case "forks and dies":
                if not os.fork():
                    time.sleep(20.0)
                os._exit(3)
            case "speaks":  # not a mistake
                sys.stdout.write("the first line\nthe second line\n")
                return self.obs, 0.0, False, False, {}
            case "ends its helper":  # not a mistake
                with subprocess.Popen(["sleep", "600"]) as helper:
                    helper.terminate()
                return self.obs, 0.0, False, False, {}
            case "nan":
                return np.array([np.nan, 0.0]), 0.0, False, False, {}
            case "shape":
                return np.zeros(3), 0.0, False, False, {}
            case "dtype":
                return np.array(["a", "b"]), 0.0, False, False, {}
            case "reward nan":
                return self.obs, np.nan, False, False, {}
            case "reward":
                return self.obs, np.zeros(2), False, False, {}
            case "terminated":
                return self.obs, 0.0, None, False, {}
        raise AssertionError(self.wrong)


class Spaces(gym.Env[Any, Any]):
    """Observes and acts in any given spaces."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 1.0, np.bool_(False), np.bool_(False), {}


TOYS: dict[str, Any] = {"hocket/Counter-v0": Counter, "hocket/Spaces-v0": Spaces}

for name, toy in TOYS.items():
    if name not in gym.registry:
        gym.register(name, toy)
