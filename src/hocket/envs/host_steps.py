"""Host environments inside a traced program: their first observations and their steps."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.core.program.host import LiveFunction, NativeCall, Specs, call_host
from hocket.core.program.service import At
from hocket.envs.env import Step
from hocket.envs.episode import EpisodeStats
from hocket.envs.host import (
    HostEnv,
    HostEnvError,
    HostStep,
    LiveEnvs,
    NativeEnvs,
    Watchable,
    WatchedEnvs,
)

COUNTS = len(EpisodeStats._fields)


class HostState(NamedTuple):
    """The small part of the environments' state that is in the program, `[N, ...]`.

    The rest stays in the environments on the host.
    """

    seed: Array
    """The seed with which each environment began."""
    steps: Array
    """The number of steps that each environment has taken."""
    obs: Any
    """The last observation of each environment."""


def begin(env: HostEnv, keys: Array) -> HostState:
    """Return the environments before their first step, each seeded from its key.

    The environments are opened only to get their first observations, and closed again. They are
    opened a second time where they will run. So the same seed must always give the same first
    observation.
    """
    seed = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys)
    shape = jax.tree.structure(env.observation_space.spec())
    obs = jax.tree.unflatten(shape, call_host(_Beginning(env), seed))
    return HostState(seed, jnp.zeros(seed.shape, jnp.int32), obs)


def step(
    env: HostEnv, state: HostState, episode: EpisodeStats, action: Any
) -> tuple[HostState, EpisodeStats, Step]:
    """Step all environments in a single host call."""
    shape = jax.tree.structure(env.observation_space.spec())
    given = (state.seed, state.steps, *episode, *jax.tree.leaves((state.obs, action)))
    steps, *results = call_host(_Stepping(env), *given)
    counts, ends, observed = results[:COUNTS], results[COUNTS : COUNTS + 3], results[COUNTS + 3 :]
    half = len(observed) // 2
    obs, final = (jax.tree.unflatten(shape, x) for x in (observed[:half], observed[half:]))
    return HostState(state.seed, steps, obs), EpisodeStats(*counts), Step(final, *ends)


@dataclass(frozen=True)
class _EnvFunction:
    """The base of two host functions: the one that begins `env`, and the one that steps it."""

    env: HostEnv
    keeps_state = False
    service = None
    changes = False

    @property
    def name(self) -> str:
        return self.env.name


@dataclass(frozen=True)
class _Beginning(_EnvFunction):
    def __repr__(self) -> str:
        return f"begin {self.env!r}"

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        return _observations(self.env, arrays[0].shape[0])

    def open(self, *, watched: bool = False, at: At | None = None) -> LiveFunction:
        return _Begun(self.env)


class _Begun(LiveFunction):
    """Opens environments for their first observations, and closes them again."""

    def __init__(self, env: HostEnv) -> None:
        self._env = env
        self._first: list[np.ndarray] = []

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        (seeds,) = arrays
        with _Blamed(self._env):
            live = self._env.open(len(seeds))
            try:
                self._first = jax.tree.leaves(live.reset(seeds))
            finally:
                live.close()
        _check(self._env, _kinds(_observations(self._env, len(seeds))), self._first)

    def finish(self) -> list[np.ndarray]:
        return self._first


@dataclass(frozen=True)
class _Stepping(_EnvFunction):
    keeps_state = True

    def __repr__(self) -> str:
        return f"step {self.env!r}"

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Specs:
        num = arrays[0].shape[0]
        steps, episode = arrays[1], arrays[2 : 2 + COUNTS]
        observed = _observations(self.env, num)
        return [steps, *episode, *_ends(num), *observed, *observed]

    def open(self, *, watched: bool = False, at: At | None = None) -> LiveFunction:
        return _Stepped(self.env, watched=watched)


class _Stepped:
    """The live environments of one program, in batches of environments that step together.

    A program may step several batches in turn. Each batch is identified by the seed of its first
    environment.
    """

    def __init__(self, env: HostEnv, *, watched: bool) -> None:
        self._env, self._watched = env, watched
        self._batches: dict[int, _LiveBatch] = {}
        self._under_way: list[_LiveBatch] = []
        self._pieces: Mapping[str, bytes] = {}

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        first = int(arrays[0][0])
        if first not in self._batches:
            self._batches[first] = _LiveBatch(
                self._env, arrays[0], arrays[1], watched=self._watched
            )
            # The batch is in the dict before it begins, so that `overdue` finds it if it hangs.
            self._batches[first].begin(self._pieces)
        batch = self._batches[first]
        batch.start(arrays)
        self._under_way.append(batch)

    def finish(self) -> list[np.ndarray]:
        return self._under_way.pop(0).finish()

    def native(self) -> NativeCall | None:
        if len(self._batches) != 1 or self._under_way:
            return None
        return next(iter(self._batches.values())).native()

    def snapshot(self) -> dict[str, bytes] | None:
        saved: list[Any] = [batch.snapshot() for batch in self._batches.values()]
        return None if None in saved else {k: x for part in saved for k, x in part.items()}

    def restore(self, pieces: Mapping[str, bytes]) -> None:
        self._pieces = pieces

    def overdue(self) -> HostEnvError | None:
        # The dict is copied, because the thread that steps may add a batch meanwhile.
        watched = [b.live for b in list(self._batches.values()) if isinstance(b.live, WatchedEnvs)]
        return next((error for live in watched if (error := live.overdue())), None)

    def close(self) -> None:
        for batch in self._batches.values():
            batch.live.close()
        self._batches.clear()


class _LiveBatch:
    """Environments that step together."""

    def __init__(self, env: HostEnv, seed: np.ndarray, steps: np.ndarray, *, watched: bool) -> None:
        self._env, self._seed, self._steps = env, seed.copy(), steps.copy()
        self._actions = jax.tree.structure(env.action_space.spec())
        self._given: Sequence[np.ndarray] = ()
        self._first: Any = None
        observed = _observations(env, len(seed))
        self._wanted = _kinds([*observed, *_ends(len(seed)), *observed])
        with _Blamed(env):
            here = env.open_here(len(seed)) if watched and isinstance(env, Watchable) else None
            self.live: LiveEnvs = here if here is not None else env.open(len(seed))

    def begin(self, pieces: Mapping[str, bytes]) -> None:
        """Begin the first episodes, or continue those that are saved in `pieces`."""
        seed, steps = self._seed, self._steps
        with _Blamed(self._env):
            begun = bool(steps.any())
            # An episode that was not saved cannot continue, so a new one begins from a new seed.
            first = self.live.reset(seed ^ steps.astype(np.uint32) if begun else seed)
            if begun and all(name in pieces for name in self._names()):
                self.live.restore([pieces[name] for name in self._names()])
            elif begun:
                self._first = first

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        if arrays[1].tobytes() != self._steps.tobytes():  # faster than `array_equal`
            raise RuntimeError(
                f"the number of steps that {self._env.name} has taken differs from the number in "
                f"the program's state. Environments on the host cannot go back to an earlier "
                f"state, and cannot serve two runs. Continue from the newest state."
            )
        self._given = arrays
        if self._first is None:
            actions = jax.tree.unflatten(self._actions, arrays[-self._actions.num_leaves :])
            with _Blamed(self._env):
                self.live.send(actions)

    def finish(self) -> list[np.ndarray]:
        _, steps, *rest = self._given
        step = self._receive() if self._first is None else self._cut_short(rest)
        np.add(steps, np.int32(1), out=self._steps)
        obs, *ends, final = step
        counts = _after(rest[:COUNTS], step)
        return [self._steps.copy(), *counts, *ends, *jax.tree.leaves((obs, final))]

    def native(self) -> NativeCall | None:
        live = self.live
        return live.native(self._seed, self._steps) if isinstance(live, NativeEnvs) else None

    def snapshot(self) -> dict[str, bytes] | None:
        pieces = self.live.snapshot() if self._first is None else None
        return None if pieces is None else dict(zip(self._names(), pieces, strict=True))

    def _receive(self) -> HostStep:
        with _Blamed(self._env):
            step = self.live.recv()
        _check(self._env, self._wanted, jax.tree.leaves(step))
        return step

    def _names(self) -> list[str]:
        """Return the name of each environment's snapshot: its seed and its number of steps."""
        return [f"{a}-{b}" for a, b in zip(self._seed, self._steps, strict=True)]

    def _cut_short(self, rest: Sequence[np.ndarray]) -> HostStep:
        """Return a step that truncates all episodes, without an action in any environment.

        After a restart of the run, episodes that were not saved cannot continue.
        """
        first, self._first = self._first, None
        shape = jax.tree.structure(first)
        last = jax.tree.unflatten(shape, rest[COUNTS : COUNTS + shape.num_leaves])
        none = np.zeros(len(rest[0]), bool)
        return HostStep(first, none.astype(np.float32), none, ~none, last)


def _observations(env: HostEnv, num: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of `num` observations."""
    leaves = jax.tree.leaves(env.observation_space.spec())
    return [jax.ShapeDtypeStruct((num, *x.shape), x.dtype) for x in leaves]


def _ends(num: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of reward, terminated and truncated."""
    return [jax.ShapeDtypeStruct((num,), kind) for kind in (jnp.float32, jnp.bool_, jnp.bool_)]


def _kinds(specs: Specs) -> list[tuple[Any, Any]]:
    return [(spec.shape, np.dtype(spec.dtype)) for spec in specs]


class _Blamed:
    """A context in which every exception becomes a `HostEnvError` that names the environment."""

    def __init__(self, env: HostEnv) -> None:
        self._env = env

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, HostEnvError):
            raised = "".join(traceback.format_exception(error))
            raise HostEnvError(f"`{self._env.name}` failed:\n{raised}") from None


def _check(env: HostEnv, wanted: list[tuple[Any, Any]], given: list[Any]) -> None:
    """Refuse arrays whose shapes or dtypes differ from the spaces', before a program reads them."""
    if all(type(x) is np.ndarray for x in given) and [(x.shape, x.dtype) for x in given] == wanted:
        return
    got = ", ".join(_short(np.shape(x), np.asarray(x).dtype) for x in given)
    raise HostEnvError(
        f"`{env.name}` returned {got}, but its spaces require "
        f"{', '.join(_short(*kind) for kind in wanted)}. Return numpy arrays with a row for each "
        f"environment."
    )


def _short(shape: Any, dtype: Any) -> str:
    return f"{dtype.name}{list(shape)}"


def _after(episode: Sequence[np.ndarray], step: HostStep) -> tuple[np.ndarray, ...]:
    """Do in numpy what `EpisodeStats.after` does, for all environments at once."""
    ret, length, ended_return, ended_length, ended = episode
    ret, length = ret + step.reward, length + np.int32(1)
    if not np.count_nonzero(step.terminated) + np.count_nonzero(step.truncated):
        return ret, length, ended_return, ended_length, ended
    done = step.terminated | step.truncated
    return (
        np.where(done, np.float32(0), ret),
        np.where(done, np.int32(0), length),
        ended_return + np.where(done, ret, np.float32(0)),
        ended_length + np.where(done, length, np.int32(0)),
        ended + done.astype(np.int32),
    )
