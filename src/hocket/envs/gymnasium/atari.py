"""Atari games with the usual preprocessing, stepped by ALE's own threads in C++."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hocket.envs.host import HostStep, LiveEnvs, channels_last, new_array
from hocket.envs.spaces import Box, Discrete
from hocket.errors import check_options, unknown

try:
    import ale_py
    import gymnasium as gym
    from ale_py.vector_env import AtariVectorEnv
except ImportError as error:
    raise ImportError(
        "Atari games need the packages ale-py and gymnasium. Run: pip install 'hocket[atari]'"
    ) from error

# Parameters of `AtariVectorEnv` that users cannot set, because hocket sets them or because
# `AtariEnv` does not support other values.
_NOT_OPTIONS = {"self", "game", "num_envs", "batch_size", "autoreset_mode", "num_threads"} | {
    "continuous", "continuous_action_threshold", "grayscale", "thread_affinity_offset",
}  # fmt: skip


def make(name: str, workers: int = 0, **options: Any) -> AtariEnv:
    """Return the game called `name`, such as `ALE/Pong-v5`; see `AtariEnv`."""
    env = AtariEnv(name, options, workers)
    _ = env.action_space  # starts the game once, so that wrong options raise here
    return env


@dataclass(frozen=True)
class AtariEnv:
    """An Atari game as DQN saw it, in four grey frames of 84 by 84 pixels, uint8 `[84, 84, 4]`.

    Each step takes four frames of the game and shows the pixelwise maximum of the last two. An
    episode begins with up to 30 no-ops, and with FIRE if the game waits for it. It ends with the
    game, or after 108,000 frames. Rewards are clipped to -1, 0 and 1, and reported returns are sums
    of clipped rewards; use `reward_clipping=False` for the game's own score. Actions are never
    repeated at random; use `repeat_action_probability=0.25` for the protocol of Machado et al.,
    2018. Losing a life does not end an episode; use `episodic_life=True` if it should. Most options
    of `ale_py.AtariVectorEnv` may be set; the error for an unknown option lists them.

    Mnih et al., Human-level control through deep reinforcement learning, 2015.
    """

    id: str
    """Gymnasium's name for the game, such as `ALE/Pong-v5`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 0
    """Number of threads; 0 for the number of cores or of environments, whichever is smaller."""

    def __post_init__(self) -> None:
        known = inspect.signature(AtariVectorEnv.__init__).parameters
        defaults = {k: x.default for k, x in known.items() if k not in _NOT_OPTIONS}
        given = {**self.options, "workers": self.workers}
        check_options(given, defaults | {"workers": 0}, where=f"of `{self.name}`")

    def __hash__(self) -> int:
        return hash((self.id, *self.options, self.workers))

    @property
    def name(self) -> str:
        return f"gymnasium:{self.id}"

    @property
    def observation_space(self) -> Box:
        given = {"img_height": 84, "img_width": 84, "stack_num": 4, **self.options}
        return Box(0, 255, (given["img_height"], given["img_width"], given["stack_num"]), "uint8")

    @cached_property
    def action_space(self) -> Discrete:
        vector = self._vector(1)
        try:
            return Discrete(int(vector.single_action_space.n))
        finally:
            vector.close()

    def open(self, num_envs: int) -> LiveEnvs:
        return _LiveAtari(self._vector(num_envs))

    def _vector(self, num_envs: int) -> Any:
        return AtariVectorEnv(
            _game(self.id),
            num_envs,
            num_threads=self.workers,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
            **self.options,
        )


class _LiveAtari(LiveEnvs):
    """Running Atari games. They have no snapshots, because ALE's vector environment offers none."""

    def __init__(self, vector: Any) -> None:
        self._vector = vector

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        # The top bit is cleared, because ALE's seeds are int32, and a negative one means no seed.
        return channels_last(self._vector.reset(seed=(seeds & 0x7FFFFFFF).astype(np.int64))[0])

    def send(self, actions: np.ndarray) -> None:
        self._vector.send(np.array(actions, np.int32))

    def recv(self) -> HostStep:
        frames, reward, terminated, truncated, info = self._vector.recv()
        obs = final = channels_last(frames)
        terminated, truncated = terminated.astype(np.bool_), truncated & ~terminated
        done = terminated | truncated
        if done.any():
            final = new_array(obs.shape, obs.dtype)
            final[:] = obs
            final[done] = np.moveaxis(info["final_obs"][done], 1, -1)
        return HostStep(obs, reward.astype(np.float32), terminated, truncated, final)

    def close(self) -> None:
        self._vector.close()


def _game(id: str) -> str:
    """Return the name of the game's ROM."""
    gym.register_envs(ale_py)
    known = [name for name in gym.registry if name.startswith("ALE/")]
    if id not in known:
        near = difflib.get_close_matches(id, known, n=8, cutoff=0.3)
        raise ValueError(
            f"{unknown('Atari game', id, near)} "
            "For all names, import ale_py and call gymnasium.pprint_registry()."
        )
    return gym.registry[id].kwargs["game"]
