"""Adapter for EnvPool environments, which run in C++ threads (`pip install 'hocket[envpool]'`)."""

from __future__ import annotations

import difflib
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from hocket.core.program.host import NativeCall
from hocket.envs.host import HostStep, LiveEnvs, channels_last
from hocket.envs.spaces import Box, Space
from hocket.errors import check_option, unknown

try:
    import envpool
except ImportError as error:
    raise ImportError(
        "EnvPool environments need the package envpool. Run: pip install 'hocket[envpool]'"
    ) from error

from hocket.envs.gymnasium.spaces import Actions, Observations
from hocket.envs.native.pool import NativePool, offered

_FILTERS = threading.Lock()
"""The lock for Python's warning filters, which the whole process shares."""


def make(name: str, num_threads: int = 0, **options: Any) -> EnvPoolEnv:
    """Return the EnvPool environment called `name`; see `EnvPoolEnv`."""
    known = envpool.list_all_envs()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=8, cutoff=0.3)
        message = unknown("EnvPool environment", name, near)
        raise ValueError(f"{message} For all names, see envpool.list_all_envs().")
    env = EnvPoolEnv(name, options, num_threads)
    _ = env.observation_space  # makes an environment, so that wrong options raise here
    return env


@dataclass(frozen=True)
class EnvPoolEnv:
    """An EnvPool environment, given by its name.

    The options are EnvPool's own; see its documentation. For Atari the defaults are those of DQN:
    four grey frames, four frames per step, up to 30 no-ops. Rewards are the game's own, unless
    `reward_clip=True`. Images have their channels moved to the last axis. An episode that
    terminates exactly at the time limit counts as truncated, because EnvPool reports it so.
    """

    id: str
    """EnvPool's name for the environment, such as `Pong-v5`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for `envpool.make`."""
    num_threads: int = 0
    """Number of threads; 0 for the number of cores or of environments, whichever is smaller."""

    def __post_init__(self) -> None:
        check_option("num_threads", self.num_threads, 0, where=f"of `{self.name}`")
        for option in ("num_envs", "batch_size", "seed", "env_type"):
            if option in self.options:
                raise ValueError(f"`{option}` of `{self.name}` is set by hocket. Leave it out.")

    def __hash__(self) -> int:
        return hash((self.id, *self.options, self.num_threads))

    @property
    def name(self) -> str:
        return f"envpool:{self.id}"

    @property
    def observation_space(self) -> Space:
        space = _converters(self)[0].space
        return _turned(space) if _is_image(space) else space

    @property
    def action_space(self) -> Space:
        return _converters(self)[1].space

    def open(self, num_envs: int) -> LiveEnvs:
        return _LivePool(self, num_envs)

    def pool(self, seeds: list[int]) -> Any:
        """Make an EnvPool with one environment for each seed."""
        try:
            return envpool.make(
                self.id,
                env_type="gymnasium",
                num_envs=len(seeds),
                num_threads=self.num_threads,
                seed=seeds,
                **self.options,
            )
        except (TypeError, ValueError, AssertionError) as error:
            given = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "no options"
            raise ValueError(f"`{self.name}` cannot be made with {given}: {error}") from error


@lru_cache(maxsize=64)
def _converters(env: EnvPoolEnv) -> tuple[Observations, Actions]:
    """Return converters of observations and actions. The spaces are read from a temporary pool."""
    pool = env.pool([0])
    try:
        observation_space, action_space = _spaces(pool)
        return Observations(observation_space, env.name), Actions(action_space, env.name)
    finally:
        pool.close()


def _spaces(pool: Any) -> tuple[Any, Any]:
    """Return the spaces of a pool. EnvPool makes them at the first call, and may warn then.

    Several threads may call this at once, each for its own pool, hence the lock.
    """
    with _FILTERS, warnings.catch_warnings():
        # The warning is about EnvPool's float64 bounds of float32 spaces. Users cannot change them.
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        return pool.observation_space, pool.action_space


class _LivePool(LiveEnvs):
    """Running environments of EnvPool, which offers no snapshot.

    After an episode's end, EnvPool ignores the next action, and returns the first observation of a
    new episode. So `recv` steps the environments that have just ended an episode a second time,
    with an action of zeros.
    """

    def __init__(self, env: EnvPoolEnv, num_envs: int) -> None:
        self._env, self._num_envs = env, num_envs
        self._observations, self._actions = _converters(env)
        self._turned = _is_image(self._observations.space)
        self._none = [
            np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in self._actions.leaves
        ]
        self._pool: Any = None
        self._where: list[int] = []
        self._given: Any = None
        self._native: NativePool | None = None

    def reset(self, seeds: np.ndarray) -> Any:
        self.close()
        self._given = self._native = None
        # A new pool, because a pool can be seeded only when it is made. Its seeds are int32.
        self._pool = self._env.pool([int(seed) & 0x7FFFFFFF for seed in seeds])
        _spaces(self._pool)
        first = self._observations.tree(self._arrays(self._pool.reset()[0]))
        names, keys = list(self._pool._state_keys), list(self._pool._spec._action_keys)
        is_array = isinstance(self._actions.batch(self._none), np.ndarray)
        if is_array and "obs" in names and keys[:-1] == ["env_id", "players.env_id"]:
            self._where = [names.index(name) for name in ("obs", "reward", "done", "trunc")]
        return first

    def send(self, actions: Any) -> None:
        if self._native and self._native.has_received:
            return
        given = self._actions.batch(self._actions.arrays(actions))
        if not self._where:
            self._pool.send(given)
            return
        if self._given is None:
            self._given = self._pool._from(given)
            self._pool._check_action(self._given)
        self._given[-1] = np.ascontiguousarray(given, self._given[-1].dtype)
        self._pool._send(self._given)

    def recv(self) -> HostStep:
        raw, reward, ended, truncated = self._receive()
        obs = final = self._arrays(raw)
        if np.count_nonzero(ended) + np.count_nonzero(truncated):
            done = np.flatnonzero(ended | truncated).astype(np.int32)
            final = [x.copy() for x in obs]
            for rows, new in zip(obs, self._arrays(self._begin_anew(done)), strict=True):
                rows[done] = new
        terminated = ended & ~truncated
        reward = reward.astype(np.float32, copy=False)
        obs, final = (self._observations.tree(arrays) for arrays in (obs, final))
        return HostStep(obs, reward, terminated, truncated, final)

    # If observations and actions are one array each, `_where` is not empty, and EnvPool's `_send`
    # and `_recv` are called directly. This saves the Python code of its `send` and `recv`, which
    # takes half the time of a step of 8 environments.

    def _receive(self) -> Any:
        """Return `(obs, reward, ended, truncated)`; `ended` may include truncated episodes."""
        if self._native and self._native.has_received:
            return self._native.take()
        if self._where:
            results = self._pool._recv()
            return [results[k] for k in self._where]
        obs, reward, terminated, truncated, _ = self._pool.recv()
        return obs, reward, terminated.astype(np.bool_), truncated.astype(np.bool_)

    def _begin_anew(self, done: np.ndarray) -> Any:
        """Return the first observations of the next episodes of the environments in `done`."""
        nothing = self._actions.batch([x[: len(done)] for x in self._none])
        if not self._where:
            return self._pool.step(nothing, done)[0]
        self._pool._send([done, done, np.ascontiguousarray(nothing, self._given[-1].dtype)])
        return self._pool._recv()[self._where[0]]

    def native(self, seed: np.ndarray, steps: np.ndarray) -> NativeCall | None:
        if self._given is None or self._turned or (pool := offered(self._pool)) is None:
            return None
        offer, kinds = pool
        rows = [np.zeros(shape, dtype) for shape, dtype in kinds]
        obs, reward, *ends = (rows[k] for k in self._where)
        # C++ copies the bytes as they are, so none of these arrays may need a conversion.
        pairs = (self._observations, obs), (self._actions, self._given[-1])
        same = all(len(of.leaves) == 1 and of.leaves[0].is_as(x) for of, x in pairs)
        if not same or reward.dtype != np.float32 or any(x.dtype != np.bool_ for x in ends):
            return None
        given = [np.ascontiguousarray(x).copy() for x in self._given]
        self._native = NativePool(offer, given, rows, self._where, seed, steps)
        return self._native.call

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = self._native = None

    def _arrays(self, obs: Any) -> list[np.ndarray]:
        """Convert observations of the pool to new arrays."""
        return [channels_last(obs)] if self._turned else self._observations.batch(obs)


def _is_image(space: Space) -> bool:
    """Return True if observations are images with their channels first."""
    if not isinstance(space, Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return False
    return space.shape[0] < min(space.shape[1:])


def _turned(space: Any) -> Box:
    """Return the image space `space` with its channels moved to the last axis."""
    low, high = (
        np.moveaxis(np.broadcast_to(bound, space.shape), 0, -1) for bound in (space.low, space.high)
    )
    return Box(low, high, (*space.shape[1:], space.shape[0]), space.dtype)
