"""The contract of environments that run on the host as ordinary code, in Python or C++."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hocket.core.program.host import NativeCall
from hocket.envs.spaces import Space

# Legend: n environments. All arrays are numpy arrays `[n, ...]`, with a row for each environment.

ALIGNMENT = 64
"""Host arrays that begin at a multiple of this many bytes are used by XLA without a copy."""
SMALL = 4096
"""For arrays of fewer bytes, XLA's copy costs less than the alignment."""
OPEN_SECONDS = 120.0
"""How long environments may take to be made, unless their own time limit is longer."""


class HostEnvError(RuntimeError):
    """Raised when an environment on the host fails. The message says which, and what it did."""


class HostStep(NamedTuple):
    """The results of one step of `n` environments. The arrays are never written to again.

    Where an episode ended, the next one has already begun, and `obs` is its first observation.
    `terminated` and `truncated` are never both true.
    """

    obs: Any
    """Observations to act on next, as a tree like the observation space."""
    reward: np.ndarray
    """float32."""
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    """Where the actions led: the final observation where an episode ended, elsewhere `obs`."""


class LiveEnvs(Protocol):
    """`n` running environments. Each step is one `send` and one `recv`.

    A subclass has no snapshots unless it defines `snapshot` and `restore`.
    """

    def reset(self, seeds: np.ndarray) -> Any:
        """Begin an episode in each environment from a uint32 seed; return observations `[n, ...]`.

        The same seeds and actions give the same results, in this and all later episodes.
        """

    def send(self, actions: Any) -> None:
        """Start a step of all environments. Returns at once if they run elsewhere."""

    def recv(self) -> HostStep:
        """Wait for the step, and return its results."""
        ...

    def snapshot(self) -> list[bytes] | None:
        """Return each environment's state, with its generator and elapsed steps, or None."""
        return None

    def restore(self, snapshots: list[bytes]) -> None:
        """Continue from a snapshot. The next call is `send`."""
        raise HostEnvError(f"{type(self).__name__} cannot be restored: it has no snapshot.")

    def close(self) -> None:
        """End the environments, and whatever they run in."""


@runtime_checkable
class NativeEnvs(LiveEnvs, Protocol):
    """Environments that native code can step; see `native/pool.cpp`."""

    def native(self, seed: np.ndarray, steps: np.ndarray) -> NativeCall | None:
        """Return the native call for a step of `host_steps.py`, or None. It updates `steps`."""


@runtime_checkable
class HostEnv(Protocol):
    """A description of environments that run on the host. Nothing runs before `open`.

    An implementation is a frozen dataclass that can be hashed and pickled.
    """

    @property
    def name(self) -> str:
        """The name by which `make` knows it, such as `gymnasium:CartPole-v1`."""
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
    """Environments that cannot interrupt a step that hangs, so another thread watches the time."""

    def overdue(self) -> HostEnvError | None:
        """Return the error for an environment that hangs, or None. Called by another thread."""


@runtime_checkable
class Watchable(Protocol):
    """A host environment that can step in its caller's thread. If it hangs, so does its caller."""

    def open_here(self, num_envs: int) -> WatchedEnvs | None:
        """Start the environments in this thread, or return None if their options say otherwise."""


class Stage(Protocol):
    """One environment that renders itself. It starts no new episode by itself."""

    def reset(self, seed: int) -> Any:
        """Begin an episode, and return its first observation."""

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """Take one step, and return `(obs, reward, done)`."""
        ...

    def frame(self) -> np.ndarray:
        """Return an image of its present state, uint8 `[H, W, 3]`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Filmable(Protocol):
    """A host environment that can be filmed."""

    def stage(self) -> Stage: ...


def new_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialized array, aligned so that XLA uses it without a copy."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def merged_final(obs: list[np.ndarray], final: list[np.ndarray], done: np.ndarray) -> list[Any]:
    """Return `final` where an episode ended, and `obs` elsewhere.

    Fills the other rows of `final` in place. If no episode ended, returns `obs` itself.
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
