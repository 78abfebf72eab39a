"""The contract of environments that run on the host as ordinary code, in Python or C++."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hocket.core.program.host import NativeCall
from hocket.envs.spaces import Space

# Legend: n environments. All arrays are numpy arrays `[n, ...]`, with a row for each environment.

ALIGNMENT = 64
"""The alignment in bytes that a host array needs for XLA to use it without a copy."""
SMALL = 4096
"""The size in bytes below which arrays are not aligned, because a copy by XLA costs less."""
OPEN_SECONDS = 120.0
"""Maximum number of seconds for making environments, unless their own timeout is longer."""


class HostEnvError(RuntimeError):
    """Raised when an environment on the host fails. The message names it and says what it did."""


class HostStep(NamedTuple):
    """The results of one step of `n` environments. The arrays are never written to again.

    Where an episode ended, the next one has already begun, and `obs` is its first observation.
    `terminated` and `truncated` are never both true.
    """

    obs: Any
    """Observations to act on next, as a tree like the observation space."""
    reward: np.ndarray
    """Rewards, float32 `[n]`."""
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    """Observations to which the actions led: final ones where episodes ended, elsewhere `obs`."""


class LiveEnvs(Protocol):
    """`n` running environments. Each step is one `send` and one `recv`.

    A subclass has no snapshots unless it defines `snapshot` and `restore`.
    """

    def reset(self, seeds: np.ndarray) -> Any:
        """Begin an episode in each environment from a uint32 seed; return observations `[n, ...]`.

        The same seeds and actions give the same results, in this and all later episodes.
        """

    def send(self, actions: Any) -> None:
        """Start a step of all environments.

        If other threads or processes carry it out, do not wait for its end.
        """

    def recv(self) -> HostStep:
        """Wait for the step, and return its results."""
        ...

    def snapshot(self) -> list[bytes] | None:
        """Return each environment's saved state, or None if the environments cannot be saved.

        The state includes the random generator, and the number of steps taken in the episode.
        """
        return None

    def restore(self, snapshots: list[bytes]) -> None:
        """Continue from the result of `snapshot`. The next call must be `send`."""
        raise HostEnvError(
            f"{type(self).__name__} cannot be restored, because it has no snapshots."
        )

    def close(self) -> None:
        """End the environments, and the threads or processes that step them."""


@runtime_checkable
class NativeEnvs(LiveEnvs, Protocol):
    """Environments that native code can step; see `native/pool.cpp`."""

    def native(self, seed: np.ndarray, steps: np.ndarray) -> NativeCall | None:
        """Return a C function that steps the environments, or None if only Python can.

        The function adds 1 to each environment's count in `steps` with every step.
        """


@runtime_checkable
class HostEnv(Protocol):
    """A description of environments that run on the host. Nothing runs before `open`.

    An implementation is a frozen dataclass that can be hashed and pickled.
    """

    @property
    def name(self) -> str:
        """The environment's name for `make`, such as `gymnasium:CartPole-v1`."""
        ...

    @property
    def observation_space(self) -> Space: ...

    @property
    def action_space(self) -> Space: ...

    def open(self, num_envs: int) -> LiveEnvs:
        """Start `num_envs` environments."""
        ...


@runtime_checkable
class WatchedEnvs(LiveEnvs, Protocol):
    """Environments in which a hanging step cannot be interrupted. Another thread watches them."""

    def overdue(self) -> HostEnvError | None:
        """Return the error of an environment that hangs, else None. Another thread calls this."""


@runtime_checkable
class Watchable(Protocol):
    """A host environment that can step in its caller's thread while another watches for hangs."""

    def open_here(self, num_envs: int) -> WatchedEnvs | None:
        """Start the environments in this thread, or return None if their options rule that out."""


class Stage(Protocol):
    """One environment that renders itself. Only `reset` begins a new episode."""

    def reset(self, seed: int) -> Any:
        """Begin an episode, and return its first observation."""

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """Take one step, and return `(obs, reward, done)`."""
        ...

    def frame(self) -> np.ndarray:
        """Return an image of the present state, uint8 `[H, W, 3]`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Filmable(Protocol):
    """A host environment that can render itself for a recording."""

    def stage(self) -> Stage: ...


def new_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialized array. If it has at least `SMALL` bytes, XLA needs no copy of it."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def merged_final(obs: list[np.ndarray], final: list[np.ndarray], done: np.ndarray) -> list[Any]:
    """Return the rows of `final` where an episode ended, and those of `obs` elsewhere.

    The rows of `obs` are copied into `final`. If no episode ended, `obs` itself is returned.
    """
    if not done.any():
        return obs
    going = ~done
    for rows, after in zip(final, obs, strict=True):
        rows[going] = after[going]
    return final


def channels_last(frames: np.ndarray) -> np.ndarray:
    """Return images `[n, C, H, W]` as `[n, H, W, C]`, in a new array."""
    n, channels, height, width = frames.shape
    rows = new_array((n, height, width, channels), frames.dtype)
    for channel in range(channels):
        rows[..., channel] = frames[:, channel]
    return rows
