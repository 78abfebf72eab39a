"""The contract of environments that run on the host: ordinary code, in Python or in C++."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hocket.core.program.host import NativeCall
from hocket.envs.spaces import Space

# Legend: n environments. All arrays are numpy's, with one row for each environment `[n, ...]`.


ALIGNMENT = 64
SMALL = 4096
"""Below so many bytes a copy costs less than to look where an array begins."""


OPEN_SECONDS = 120.0
"""Environments may take this long to be made, if their time limit is not longer still."""


class HostEnvError(RuntimeError):
    """An environment on the host failed; says which, and what it did."""


class HostStep(NamedTuple):
    """What one step of `n` environments gave. The arrays are new ones: nobody writes to them again.

    Where an episode ended, the next one has begun already: `obs` is its first observation. Never
    both of `terminated` and `truncated`.
    """

    obs: Any
    """What to act on next, a tree as the observation space."""
    reward: np.ndarray
    """float32."""
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    """Where the action led: an episode's final observation at its end, else as `obs`."""


class LiveEnvs(Protocol):
    """`n` environments under way. Each step is one `send` and one `recv`.

    What inherits from this has no snapshot, unless it says so.
    """

    def reset(self, seeds: np.ndarray) -> Any:
        """Begin an episode in each, from uint32 seeds; the first observations `[n, ...]`.

        The same seeds and actions give the same numbers, in this and in all later episodes.
        """

    def send(self, actions: Any) -> None:
        """Start a step of all; returns at once where the environments run elsewhere."""

    def recv(self) -> HostStep:
        """What that step gave."""
        ...

    def snapshot(self) -> list[bytes] | None:
        """The state of each, with its random numbers and its time limit; None if there is none."""
        return None

    def restore(self, snapshots: list[bytes]) -> None:
        """Go on from a snapshot; the next call is `send`."""
        raise HostEnvError(f"{type(self).__name__} cannot be restored: it has no snapshot.")

    def close(self) -> None:
        """End them, and whatever they run in."""


@runtime_checkable
class NativeEnvs(LiveEnvs, Protocol):
    """Environments that native code can step, see `native/pool.cpp`."""

    def native(self, seed: np.ndarray, steps: np.ndarray) -> NativeCall | None:
        """What makes a step of `hosted.py`, if these can; it counts in `steps`."""


@runtime_checkable
class HostEnv(Protocol):
    """Environments that run on the host, described: nothing is open before `open`.

    An implementation is a frozen dataclass that hashes and pickles.
    """

    @property
    def name(self) -> str:
        """The name that `make` knows it by, such as `gymnasium:CartPole-v1`."""
        ...

    @property
    def observation_space(self) -> Space: ...

    @property
    def action_space(self) -> Space: ...

    def open(self, num_envs: int) -> LiveEnvs:
        """Start so many of them."""
        ...


@runtime_checkable
class WatchedEnvs(LiveEnvs, Protocol):
    """Environments whose time somebody else watches."""

    def overdue(self) -> HostEnvError | None:
        """What hangs, asked from another thread; None while nothing does."""


@runtime_checkable
class Watchable(Protocol):
    """A host environment that can step in the thread that calls it: if it hangs, so does that."""

    def open_here(self, num_envs: int) -> WatchedEnvs | None:
        """Start so many of them in this thread; None where they run elsewhere anyway."""


class Stage(Protocol):
    """One environment that shows itself. It begins no episode by itself."""

    def reset(self, seed: int) -> Any:
        """Begin an episode; its first observation."""

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """One step: `(obs, reward, done)`."""
        ...

    def frame(self) -> np.ndarray:
        """What it looks like now, uint8 `[H, W, 3]`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Filmable(Protocol):
    """A host environment that can be looked at."""

    def stage(self) -> Stage: ...


def new_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array whose values are not set, aligned so that XLA takes it without a copy."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def merged_final(obs: list[np.ndarray], final: list[np.ndarray], done: np.ndarray) -> list[Any]:
    """Final observations where an episode ended, and `obs` elsewhere; `obs` itself if none did."""
    if not done.any():
        return obs
    going = ~done
    for rows, after in zip(final, obs, strict=True):
        rows[going] = after[going]
    return final


def channels_last(frames: np.ndarray) -> np.ndarray:
    """Images `[n, C, H, W]` as `[n, H, W, C]`, in a new array."""
    n, channels, height, width = frames.shape
    rows = new_array((n, height, width, channels), frames.dtype)
    for channel in range(channels):
        rows[..., channel] = frames[:, channel]
    return rows
