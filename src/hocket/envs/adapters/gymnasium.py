"""Adapter for Gymnasium's environments (`pip install 'hocket[gymnasium]'`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, NamedTuple

import cloudpickle

from hocket.envs.host import LiveEnvs, Stage, WatchedEnvs
from hocket.envs.spaces import Space
from hocket.errors import check_options, unknown

try:
    import gymnasium as gym
    from gymnasium.error import DependencyNotInstalled
except ImportError as error:
    raise ImportError(
        "Gymnasium's environments need the package gymnasium. Run: pip install 'hocket[gymnasium]'"
    ) from error

from hocket.envs.gymnasium.block import BlockJob, PlainBlock
from hocket.envs.gymnasium.here import InCaller
from hocket.envs.gymnasium.spaces import Actions, Observations
from hocket.envs.gymnasium.stage import GymnasiumStage

VECTORIZE = ("threads", "processes", "gymnasium")
ON_DEATH = ("fail", "restart")


def make(name: str, **options: Any) -> Any:
    """The Gymnasium environment called `name`; see `GymnasiumEnv` for the options.

    Any other option is for `gymnasium.make`. Atari's (`ALE/Pong-v5`) are those of
    `hocket.envs.gymnasium.atari`, with the usual preprocessing.
    """
    if name.startswith("ALE/"):
        from hocket.envs.gymnasium import atari

        return atari.make(name, **options)
    ours = {f.name for f in fields(GymnasiumEnv)} - {"id", "options"}
    theirs = {option: value for option, value in options.items() if option not in ours}
    mine = {option: value for option, value in options.items() if option in ours}
    env = GymnasiumEnv(name, theirs, **mine)
    _ = env.observation_space, env.action_space  # made now, so that mistakes are told now
    return env


@dataclass(frozen=True)
class GymnasiumEnv:
    """A Gymnasium environment by its name, as ordinary code on the host.

    Observations are float32 where they are floats, and a `Discrete` one is a one-hot vector. An
    environment is seeded where `LiveEnvs.reset` says so, and later episodes go on from its own
    random numbers.
    """

    id: str
    """Gymnasium's name for it, `CartPole-v1` or `module:Name-v0`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For `gymnasium.make`."""
    vectorize: str = "threads"
    """`threads` of this process, worker `processes`, or `gymnasium` for its vector environments."""
    workers: int = 1
    """How many threads or processes share the environments."""
    timeout: float = 60.0
    """How many seconds a step of all environments may take."""
    on_death: str = "fail"
    """Of a worker process: `fail`, or `restart` it and truncate its episodes."""
    check: bool = True
    """Refuse observations and rewards that are not finite."""

    def __post_init__(self) -> None:
        where = f"of `{self.name}`"
        defaults = {"workers": 1, "timeout": 60.0, "check": True}
        check_options({option: vars(self)[option] for option in defaults}, defaults, where)
        for option, known in (("vectorize", VECTORIZE), ("on_death", ON_DEATH)):
            if vars(self)[option] not in known:
                raise ValueError(unknown(option, str(vars(self)[option]), known, where))
        if self.workers < 1 or self.timeout <= 0:
            raise ValueError(
                f"workers and timeout {where} must be more than 0, found workers={self.workers}, "
                f"timeout={self.timeout}."
            )

    def __hash__(self) -> int:
        return hash((self.id, *self.options, self.vectorize, self.workers))

    def __reduce__(self) -> Any:
        given = {f.name: vars(self)[f.name] for f in fields(self)}
        return _unpickled, (given, cloudpickle.dumps(_spec(self.id)))

    @property
    def name(self) -> str:
        return f"gymnasium:{self.id}"

    @property
    def observation_space(self) -> Space:
        return self._converters.observations.space

    @property
    def action_space(self) -> Space:
        return self._converters.actions.space

    @cached_property
    def _converters(self) -> _Converters:
        """What its spaces become, of an environment that is made to look at them."""
        made = _make_env(_spec(self.id), self.id, dict(self.options))
        try:
            return _Converters(
                Observations(made.observation_space, self.name),
                Actions(made.action_space, self.name),
            )
        finally:
            made.close()

    def open(self, num_envs: int) -> LiveEnvs:
        if self.vectorize == "processes":
            from hocket.envs.gymnasium.processes import InProcesses

            return InProcesses(self._job(), num_envs)
        from hocket.envs.gymnasium.threads import InThreads

        return InThreads(self._job(), num_envs)

    def open_here(self, num_envs: int) -> WatchedEnvs | None:
        if self.vectorize == "processes" or self.workers > 1:
            return None
        return InCaller(self._job(), num_envs)

    def _job(self) -> BlockJob:
        observations, actions = self._converters
        if self.vectorize == "gymnasium":
            from hocket.envs.gymnasium.vector import VectorBlock

            made = partial(_make_vector, _spec(self.id), dict(self.options))
            make_block = partial(VectorBlock, made, observations, actions, self.check)
        else:
            made = partial(_make_env, _spec(self.id), self.id, dict(self.options))
            make_block = partial(PlainBlock, made, observations, actions, self.check)
        return BlockJob(
            self.name, make_block, observations, actions, self.workers, self.timeout, self.on_death
        )

    def stage(self) -> Stage:
        """One environment that shows itself, by its own `render`."""
        options = {**self.options, "render_mode": "rgb_array"}
        env = _make_env(_spec(self.id), self.id, options)
        return GymnasiumStage(env, self.name, *self._converters)


class _Converters(NamedTuple):
    observations: Observations
    actions: Actions


def _unpickled(given: dict[str, Any], spec: bytes) -> GymnasiumEnv:
    """Where it was registered by a script, another process does not know it yet."""
    module, _, name = given["id"].rpartition(":")
    if not module and name not in gym.registry:
        gym.registry[name] = cloudpickle.loads(spec)
    return GymnasiumEnv(**given)


def _spec(id: str) -> Any:
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    if name in gym.registry:
        return gym.registry[name]
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        known = [x for x in gym.registry if not x.startswith(("ALE/", "phys2d/", "tabular/"))]
        raise ValueError(unknown("Gymnasium environment", name, known)) from error


def _make_env(spec: Any, id: str, options: dict[str, Any]) -> gym.Env[Any, Any]:
    """What `gymnasium.make` makes; what it refuses is a mistake in the name or in an option."""
    try:
        return gym.make(spec, **{"disable_env_checker": True, **options})
    except (DependencyNotInstalled, ImportError) as error:
        extra = "mujoco" if "mujoco" in str(error).lower() else None
        advice = f" Run: pip install 'hocket[{extra}]'" if extra else ""
        raise ImportError(f"`gymnasium:{id}` needs another package: {error}{advice}") from error
    except (gym.error.Error, TypeError, ValueError, AssertionError) as error:
        given = ", ".join(f"{k}={v!r}" for k, v in options.items()) or "no options"
        raise ValueError(f"`gymnasium:{id}` cannot be made with {given}: {error}") from error


def _make_vector(spec: Any, options: dict[str, Any], num_envs: int) -> Any:
    from hocket.envs.gymnasium.vector import same_step

    if spec.vector_entry_point is not None:
        vector = gym.make_vec(spec, num_envs, "vector_entry_point", **options)
        if same_step(vector):
            return vector
        vector.close()
    mode = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    return gym.make_vec(spec, num_envs, "sync", vector_kwargs=mode, **options)
