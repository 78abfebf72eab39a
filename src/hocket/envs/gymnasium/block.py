"""A block of Gymnasium environments, stepped one after the other by one thread or process."""

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
    """Where the results of a step are written: arrays with a row for each environment."""

    obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: list[np.ndarray]
    """Written only where an episode ends."""

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
        """The step that was written here."""
        final = merged_final(self.obs, self.final, self.terminated | self.truncated)
        tree = observations.tree
        return HostStep(tree(self.obs), self.reward, self.terminated, self.truncated, tree(final))


class EnvFault(Exception):
    """An environment of a block failed: its number in the block, and what it did."""

    def __init__(self, number: int | None, text: str) -> None:
        super().__init__(number, text)
        self.number, self.text = number, text


class EnvBlock(Protocol):
    """Some environments in one place. What inherits from this has no snapshot unless it says so."""

    def reset(self, seeds: Sequence[int], obs: list[np.ndarray]) -> None: ...

    def step(self, actions: list[np.ndarray], rows: StepRows) -> None: ...

    def snapshot(self) -> list[bytes] | None:
        return None

    def restore(self, snapshots: list[bytes]) -> None:
        raise EnvFault(None, "cannot be restored: there is no snapshot.")

    def close(self) -> None: ...


MakeBlock = Callable[[int, Any], EnvBlock]
"""Makes a block of so many environments; it says in `at[0]`, a list's or an array's, which of them
is at work."""


class BlockJob(NamedTuple):
    """What workers run, and how it is to be treated."""

    name: str
    make_block: MakeBlock
    observations: Observations
    actions: Actions
    workers: int
    timeout: float
    """How many seconds a step of all environments may take."""
    on_death: str

    def shares(self, num_envs: int) -> list[slice]:
        """Which environments each worker has."""
        workers = min(self.workers, num_envs)
        bounds = [num_envs * i // workers for i in range(workers + 1)]
        return [slice(*pair) for pair in pairwise(bounds)]

    def error(self, number: int | None, text: str) -> HostEnvError:
        """The error of environment `number`, or of whatever else is not one environment's."""
        which = "an environment" if number is None else f"environment {number}"
        return HostEnvError(f"{which} of `{self.name}` {text}")


class PlainBlock:
    """Environments that `gymnasium.make` makes.

    They are stepped without the wrappers for checks and time limits: the checks here are fewer and
    cheaper, and the limit is counted for all environments at once.
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
        self._check_observations(obs)

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
                    # Before the reset: an environment may use one array for all observations.
                    write_final(i, obs)
                    ended.append(i)
                    write(i, self._envs[i].reset()[0])
                else:
                    write(i, obs)
        except Exception as error:  # noqa: BLE001 (raised, as the fault of an environment)
            raise self._fault(error, "raised in `step`") from None
        self._elapsed[ended] = 0
        self._write_rewards(rewards, rows.reward)
        self._check_observations(rows.obs)
        if ended:
            self._check_observations([x[ended] for x in rows.final], ended)

    def snapshot(self) -> list[bytes] | None:
        states = [snapshot(env, int(n)) for env, n in zip(self._envs, self._elapsed, strict=True)]
        whole = [state for state in states if state is not None]
        return whole if len(whole) == len(states) else None

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
            text = f"returned the reward {rewards[i]!r}: it must be one number."
            raise EnvFault(i, text) from None
        if self._check:
            check_rewards(rows)

    def _check_observations(
        self, arrays: list[np.ndarray], numbers: Sequence[int] | None = None
    ) -> None:
        if self._check:
            check_observations(self._observations, arrays, numbers)

    @contextmanager
    def _blamed(self, i: int, did: str) -> Iterator[None]:
        self._at[0] = i
        try:
            yield
        except Exception as error:  # noqa: BLE001 (raised, as the fault of an environment)
            raise self._fault(error, did) from None

    def _fault(self, error: Exception, did: str) -> EnvFault:
        """The fault of the environment at work."""
        if isinstance(error, EnvFault):
            return error
        wrong = f"returned an observation that {error}." if isinstance(error, Wrong) else ""
        return EnvFault(int(self._at[0]), wrong or f"{did}:\n{traceback.format_exc()}")


_UNCHECKED = "Mend the environment, or let such numbers pass with check=False."


def check_rewards(rewards: np.ndarray) -> None:
    """Refuse rewards that are not finite."""
    if not np.isfinite(rewards).all():
        i = int(np.argmin(np.isfinite(rewards)))
        raise EnvFault(i, f"returned the reward {rewards[i]}. {_UNCHECKED}")


def check_observations(
    observations: Observations, arrays: list[np.ndarray], numbers: Sequence[int] | None = None
) -> None:
    """Refuse observations that are not finite; `numbers` says whose rows these are, if not all."""
    for leaf, rows in zip(observations.leaves, arrays, strict=True):
        if leaf.floating and not np.isfinite(rows).all():
            i = int(np.argmin(np.isfinite(rows.reshape(len(rows), -1)).all(-1)))
            where = f" at {'/'.join(leaf.path)}" if leaf.path else ""
            raise EnvFault(
                i if numbers is None else numbers[i],
                f"returned an observation that is not finite{where}: {rows[i]}. {_UNCHECKED}",
            )


def _flag(i: int, name: str, flag: Any) -> bool:
    is_bool = isinstance(flag, (bool, np.bool_))
    if is_bool or (np.shape(flag) == () and np.asarray(flag).dtype == np.bool_):
        return bool(flag)
    raise EnvFault(i, f"returned `{name}` = {flag!r}, which is neither True nor False.")


def _is_number(reward: Any) -> bool:
    try:
        return np.shape(np.float32(reward)) == ()
    except (TypeError, ValueError):
        return False


def _unwrapped(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], float]:
    """`env` without its outermost wrappers for checks and the time limit, and that limit."""
    limit = np.inf
    while type(env) in (TimeLimit, OrderEnforcing):
        assert isinstance(env, gym.Wrapper)
        if isinstance(env, TimeLimit):
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env, limit
