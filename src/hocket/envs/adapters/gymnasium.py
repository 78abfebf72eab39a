"""Adapter for Gymnasium environments (`pip install 'hocket[gymnasium]'`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import cloudpickle

from hocket.envs.host import LiveEnvs, Stage, WatchedEnvs
from hocket.envs.spaces import Space
from hocket.errors import check_options, unknown

try:
    import gymnasium as gym
    from gymnasium.error import DependencyNotInstalled
except ImportError as error:
    raise ImportError(
        "Gymnasium environments need the package gymnasium. Run: pip install 'hocket[gymnasium]'"
    ) from error

from hocket.envs.gymnasium.block import BlockJob, PlainBlock
from hocket.envs.gymnasium.here import InCaller
from hocket.envs.gymnasium.spaces import Actions, Observations
from hocket.envs.gymnasium.stage import GymnasiumStage


def make(name: str, **options: Any) -> Any:
    """Return the Gymnasium environment called `name`.

    Options that are fields of `GymnasiumEnv` set those; all others go to `gymnasium.make`. Atari
    games (`ALE/Pong-v5`) are made by `hocket.envs.gymnasium.atari`, with the usual preprocessing.
    """
    if name.startswith("ALE/"):
        from hocket.envs.gymnasium import atari

        return atari.make(name, **options)
    names = {f.name for f in fields(GymnasiumEnv)} - {"id", "options"}
    ours = {option: options.pop(option) for option in names & options.keys()}
    env = GymnasiumEnv(name, options, **ours)
    _ = env.observation_space  # makes an environment, so that wrong options raise here
    return env


@dataclass(frozen=True)
class GymnasiumEnv:
    """A Gymnasium environment, given by its name, which runs as ordinary code on the host.

    Floats in observations are float32, and a `Discrete` observation is a one-hot vector. Only the
    first episode is seeded. Later episodes go on drawing from the environment's own generator.
    """

    id: str
    """Gymnasium's name for the environment, such as `CartPole-v1` or `module:Name-v0`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for `gymnasium.make`."""
    vectorize: str = "threads"
    """Where environments run: `threads`, worker `processes`, or `gymnasium`'s vector form."""
    workers: int = 1
    """Number of threads or processes that share the environments."""
    timeout: float = 60.0
    """Maximum number of seconds for one step of all environments."""
    on_death: str = "fail"
    """Reaction to a worker process that dies or hangs: `fail`, or `restart` it, which truncates its
    episodes."""
    check: bool = True
    """Refuse observations and rewards that are not finite."""

    def __post_init__(self) -> None:
        where = f"of `{self.name}`"
        defaults = {"workers": 1, "timeout": 60.0, "check": True}
        check_options({option: vars(self)[option] for option in defaults}, defaults, where)
        choices = {
            "vectorize": ("threads", "processes", "gymnasium"),
            "on_death": ("fail", "restart"),
        }
        for option, known in choices.items():
            if vars(self)[option] not in known:
                raise ValueError(unknown(option, str(vars(self)[option]), known, where))
        if self.workers < 1 or self.timeout <= 0:
            raise ValueError(
                f"workers and timeout {where} must be greater than 0, found "
                f"workers={self.workers}, timeout={self.timeout}."
            )

    def __hash__(self) -> int:
        return hash((self.id, *self.options, self.vectorize, self.workers))

    def __reduce__(self) -> Any:
        arguments = {f.name: vars(self)[f.name] for f in fields(self)}
        return _unpickled, (arguments, cloudpickle.dumps(_spec(self.id)))

    @property
    def name(self) -> str:
        return f"gymnasium:{self.id}"

    @property
    def observation_space(self) -> Space:
        return self._converters[0].space

    @property
    def action_space(self) -> Space:
        return self._converters[1].space

    @cached_property
    def _converters(self) -> tuple[Observations, Actions]:
        """Converters of observations and actions.

        The spaces are read from a temporary environment.
        """
        env = _make_env(_spec(self.id), self.id, dict(self.options))
        try:
            return (
                Observations(env.observation_space, self.name),
                Actions(env.action_space, self.name),
            )
        finally:
            env.close()

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
        spec, options = _spec(self.id), dict(self.options)
        make_block = partial(PlainBlock, partial(_make_env, spec, self.id, options))
        if self.vectorize == "gymnasium":
            from hocket.envs.gymnasium.vector import VectorBlock

            make_block = partial(VectorBlock, partial(_make_vector, spec, options))
        return BlockJob(
            self.name,
            partial(make_block, *self._converters, self.check),
            *self._converters,
            self.workers,
            self.timeout,
            self.on_death,
        )

    def stage(self) -> Stage:
        """Make one environment that can return images of itself, for a recording."""
        env = _make_env(_spec(self.id), self.id, {**self.options, "render_mode": "rgb_array"})
        return GymnasiumStage(env, self.name, *self._converters)


def _unpickled(arguments: dict[str, Any], spec: bytes) -> GymnasiumEnv:
    """Return the environment, after registering it in the process that unpickles it.

    The user's script has registered it only in the process that runs the script. A name such as
    `module:Name-v0` needs no registration here, because importing the module registers it.
    """
    module, _, name = arguments["id"].rpartition(":")
    if not module and name not in gym.registry:
        gym.registry[name] = cloudpickle.loads(spec)
    return GymnasiumEnv(**arguments)


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
    """Call `gymnasium.make`. If it fails, raise an error that names the environment and options."""
    try:
        return gym.make(spec, **{"disable_env_checker": True, **options})
    except (DependencyNotInstalled, ImportError) as error:
        needs_mujoco = "mujoco" in str(error).lower()
        advice = " Run: pip install 'hocket[mujoco]'" if needs_mujoco else ""
        raise ImportError(f"`gymnasium:{id}` needs another package: {error}{advice}") from error
    except (gym.error.Error, TypeError, ValueError, AssertionError) as error:
        given = ", ".join(f"{k}={v!r}" for k, v in options.items()) or "no options"
        raise ValueError(f"`gymnasium:{id}` cannot be made with {given}: {error}") from error


def _make_vector(spec: Any, options: dict[str, Any], num_envs: int) -> Any:
    """Make one vector environment, by the environment's own class if `same_step` accepts it."""
    from hocket.envs.gymnasium.vector import same_step

    if spec.vector_entry_point is not None:
        vector = gym.make_vec(spec, num_envs, "vector_entry_point", **options)
        if same_step(vector):
            return vector
        vector.close()
    same_step_mode = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    return gym.make_vec(spec, num_envs, "sync", vector_kwargs=same_step_mode, **options)
