"""A block of Gymnasium environments, stepped one after another by one thread or process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from hocket.envs.gymnasium.snapshot import snapshot, thaw
from hocket.envs.gymnasium.spaces import Actions, Observations, Wrong
from hocket.envs.host import HostEnvError, HostStep, merged_final, new_array


class StepRows(NamedTuple):
    """Arrays for the results of a step, with a row for each environment."""

    obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: list[np.ndarray]
    """Final observations, written only where an episode ends."""

    @classmethod
    def new(cls, observations: Observations, n: int) -> StepRows:
        reward, flags = new_array((n,), np.float32), new_array((2, n), np.bool_)
        return cls(observations.empty(n), reward, flags[0], flags[1], observations.empty(n))

    def part(self, of: slice) -> StepRows:
        if of.stop - of.start == len(self.reward):
            return self
        reward, terminated, truncated = (x[of] for x in self[1:4])
        return StepRows(
            [x[of] for x in self.obs], reward, terminated, truncated, [x[of] for x in self.final]
        )

    def result(self, observations: Observations) -> HostStep:
        """Return the step that was written to these rows."""
        final = merged_final(self.obs, self.final, self.terminated | self.truncated)
        tree = observations.tree
        return HostStep(tree(self.obs), self.reward, self.terminated, self.truncated, tree(final))


class EnvFault(Exception):
    """Raised when an environment fails. `number` is its index in the block, None if unknown."""

    def __init__(self, number: int | None, text: str) -> None:
        super().__init__(number, text)
        self.number, self.text = number, text


class EnvBlock(Protocol):
    """Environments that are stepped together.

    A subclass has no snapshots unless it defines `snapshot` and `restore`.
    """

    def reset(self, seeds: Sequence[int], obs: list[np.ndarray]) -> None: ...

    def step(self, actions: list[np.ndarray], rows: StepRows) -> None: ...

    def snapshot(self) -> list[bytes] | None:
        return None

    def restore(self, snapshots: list[bytes]) -> None:
        raise EnvFault(
            None, "cannot be restored, because environments of its kind have no snapshots."
        )

    def close(self) -> None: ...


MakeBlock = Callable[[int, Any], EnvBlock]
"""`make_block(num_envs, at)` makes a block of `num_envs` environments. The block always keeps the
number of the environment that it is working on in `at[0]`, where `at` is a list or an array."""


class BlockJob(NamedTuple):
    """A job for workers: the block to make, and how to handle failures."""

    name: str
    make_block: MakeBlock
    observations: Observations
    actions: Actions
    workers: int
    timeout: float
    """Maximum number of seconds for one step of all environments."""
    on_death: str
    """Reaction to a worker process that dies or hangs: `fail` or `restart`."""

    def shares(self, num_envs: int) -> list[slice]:
        """Return the range of environments that each worker steps."""
        workers = min(self.workers, num_envs)
        bounds = [num_envs * i // workers for i in range(workers + 1)]
        return [slice(*pair) for pair in pairwise(bounds)]

    def error(self, number: int | None, text: str) -> HostEnvError:
        """Return the error of environment `number`, or of an unknown one if `number` is None."""
        which = "an environment" if number is None else f"environment {number}"
        return HostEnvError(f"{which} of `{self.name}` {text}")


class PlainBlock:
    """Environments from `gymnasium.make`.

    Gymnasium's wrappers for checks and time limits are removed. The block itself makes checks,
    which are fewer and cheaper, and counts the steps of all environments at once.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        observations: Observations,
        actions: Actions,
        check: bool,
        num_envs: int,
        at: Any,
    ) -> None:
        self._observations, self._actions = observations, actions
        self._check, self._at = check, at
        self._elapsed = np.zeros(num_envs, np.int64)
        self._envs: list[gym.Env[Any, Any]] = []
        for i in range(num_envs):
            with self._blamed(i, "could not be made"):
                env, self._limit = _unwrapped(make_env())
                self._envs.append(env)

    def reset(self, seeds: Sequence[int], obs: list[np.ndarray]) -> None:
        write = self._observations.writer(obs)
        self._elapsed[:] = 0
        for i, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            with self._blamed(i, "raised in `reset`"):
                write(i, env.reset(seed=int(seed))[0])
        if self._check:
            check_observations(self._observations, obs)

    def step(self, actions: list[np.ndarray], rows: StepRows) -> None:
        write, write_final = (self._observations.writer(x) for x in (rows.obs, rows.final))
        at, rewards, ended = self._at, [], []
        rows.terminated[:] = False
        rows.truncated[:] = False
        self._elapsed += 1
        last = (self._elapsed >= self._limit).tolist()
        todo = zip([env.step for env in self._envs], self._actions.rows(actions), strict=True)
        try:
            for i, (step, action) in enumerate(todo):
                at[0] = i
                obs, reward, terminated, truncated, _ = step(action)
                rewards.append(reward)
                if terminated is False and truncated is False and not last[i]:
                    write(i, obs)
                elif self._has_ended(i, terminated, truncated, last[i], rows):
                    # The observation is copied before the reset, which may overwrite its array.
                    write_final(i, obs)
                    ended.append(i)
                    write(i, self._envs[i].reset()[0])
                else:
                    write(i, obs)
        except Exception as error:  # noqa: BLE001 (raised, as the fault of an environment)
            raise self._fault(error, "raised in `step`") from None
        self._elapsed[ended] = 0
        self._write_rewards(rewards, rows.reward)
        if self._check:
            check_rewards(rows.reward)
            check_observations(self._observations, rows.obs)
            if ended:
                check_observations(self._observations, [x[ended] for x in rows.final], ended)

    def snapshot(self) -> list[bytes] | None:
        envs = zip(self._envs, self._elapsed, strict=True)
        states: list[Any] = [snapshot(env, int(elapsed)) for env, elapsed in envs]
        return None if None in states else states

    def restore(self, snapshots: list[bytes]) -> None:
        for i, state in enumerate(snapshots):
            with self._blamed(i, "could not be restored"):
                self._envs[i], self._elapsed[i] = thaw(state, self._envs[i])

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _has_ended(
        self, i: int, terminated: Any, truncated: Any, last: bool, rows: StepRows
    ) -> bool:
        over = _flag(i, "terminated", terminated)
        cut = (_flag(i, "truncated", truncated) or last) and not over
        rows.terminated[i], rows.truncated[i] = over, cut
        return over or cut

    def _write_rewards(self, rewards: list[Any], rows: np.ndarray) -> None:
        try:
            rows[:] = rewards
        except (TypeError, ValueError):
            i = next(i for i, reward in enumerate(rewards) if not _is_number(reward))
            text = f"returned the reward {rewards[i]!r}, which must be one number."
            raise EnvFault(i, text) from None

    @contextmanager
    def _blamed(self, i: int, did: str) -> Iterator[None]:
        self._at[0] = i
        try:
            yield
        except Exception as error:  # noqa: BLE001 (raised, as the fault of an environment)
            raise self._fault(error, did) from None

    def _fault(self, error: Exception, did: str) -> EnvFault:
        """Convert an environment's `error` to an `EnvFault`, with the environment's number."""
        if isinstance(error, EnvFault):
            return error
        wrong = f"returned an observation that {error}." if isinstance(error, Wrong) else ""
        return EnvFault(int(self._at[0]), wrong or f"{did}:\n{traceback.format_exc()}")


_UNCHECKED = "Fix the environment, or allow such numbers with check=False."


def check_rewards(rewards: np.ndarray) -> None:
    """Refuse rewards that are not finite."""
    if not np.isfinite(rewards).all():
        i = int(np.argmin(np.isfinite(rewards)))
        raise EnvFault(i, f"returned the reward {rewards[i]}. {_UNCHECKED}")


def check_observations(
    observations: Observations, arrays: list[np.ndarray], numbers: Sequence[int] | None = None
) -> None:
    """Refuse observations that are not finite.

    Row `i` is from environment `numbers[i]`, or from environment `i` if `numbers` is None.
    """
    for leaf, rows in zip(observations.leaves, arrays, strict=True):
        if leaf.dtype.kind == "f" and not np.isfinite(rows).all():
            i = int(np.argmin(np.isfinite(rows.reshape(len(rows), -1)).all(-1)))
            where = f" at {'/'.join(leaf.path)}" if leaf.path else ""
            raise EnvFault(
                i if numbers is None else numbers[i],
                f"returned an observation that is not finite{where}: {rows[i]}. {_UNCHECKED}",
            )


def _flag(i: int, name: str, flag: Any) -> bool:
    # The usual types are tested first, because `np.shape` costs more, and some environments get
    # here in every step.
    if isinstance(flag, (bool, np.bool_)) or (
        np.shape(flag) == () and np.asarray(flag).dtype == np.bool_
    ):
        return bool(flag)
    raise EnvFault(i, f"returned `{name}` = {flag!r}, which is neither True nor False.")


def _is_number(reward: Any) -> bool:
    try:
        return np.shape(np.float32(reward)) == ()
    except (TypeError, ValueError):
        return False


def _unwrapped(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], float]:
    """Return `env` stripped of outer wrappers for checks and time limits, and the time limit."""
    limit = np.inf
    while type(env) in (TimeLimit, OrderEnforcing):
        assert isinstance(env, gym.Wrapper)
        if isinstance(env, TimeLimit):
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env, limit
