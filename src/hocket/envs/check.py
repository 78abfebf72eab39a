"""`check_env`: test in seconds that an environment keeps the contract of `Env`."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.env import Env, Obs, State, Step, auto_reset
from hocket.envs.spaces import Box, DictSpace, Discrete, MultiDiscrete
from hocket.errors import ContractError

NUM_ENVS = 4
NUM_STEPS = 200


def check_env(env: Env, seed: int = 0) -> None:
    """Raise a `ContractError` that names the first part of the contract that `env` breaks.

    First trace `reset` and `step`, and compare the shapes of their results with the spaces. Then
    take random actions in a few environments at once, beyond the ends of episodes, and check the
    values.

        check_env(make("CartPole-v1"))
    """
    key = jax.random.key(seed)
    _check_interface(env)
    _check_step(env, _check_reset(env, key), key)
    _check_values(env, key)


def _check_interface(env: Env) -> None:
    name = type(env).__name__
    if not isinstance(env, Env):
        parts = ("observation_space", "action_space", "reset", "step")
        missing = ", ".join(f"`{part}`" for part in parts if part not in dir(env))
        raise ContractError(f"{name} has no {missing}. See `hocket.envs.Env` for the contract.")
    for part in ("observation_space", "action_space"):
        space = getattr(env, part)
        if not isinstance(space, Box | Discrete | MultiDiscrete | DictSpace):
            raise ContractError(
                f"{name}.{part} is {space!r}, not one of hocket's spaces. "
                "Use Box, Discrete, MultiDiscrete or DictSpace from `hocket.envs`."
            )


def _check_reset(env: Env, key: Array) -> State:
    """Check `reset`, and return the shapes of a first state."""
    where = f"{type(env).__name__}.reset"
    state, obs = _pair(where, "(state, obs)", _trace(where, env.reset, key))
    _check_observation(env, where, obs)
    return state


def _check_step(env: Env, state: State, key: Array) -> None:
    where = f"{type(env).__name__}.step"
    action = env.action_space.spec()
    after, step = _pair(where, "(state, Step)", _trace(where, env.step, state, action, key))
    if not isinstance(step, Step):
        raise ContractError(
            f"{where} returns (state, {type(step).__name__}). Return (state, Step(obs, reward, "
            "terminated, truncated)), with Step from `hocket.envs`."
        )
    _check_observation(env, where, step.obs)
    advice = "Return a state like the one that came in (`reset` makes the first one)."
    _same_shapes(f"the state of {where}", after, state, advice)
    for part, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        scalar, value = jax.ShapeDtypeStruct((), dtype), getattr(step, part)
        _same_shapes(f"`{part}` of {where}", value, scalar, f"Return one {dtype} scalar.")


def _check_observation(env: Env, where: str, obs: Obs) -> None:
    advice = "Change the observation, or `observation_space`."
    _same_shapes(f"the observation of {where}", obs, env.observation_space.spec(), advice)


def _trace(where: str, fn: Callable[..., Any], *args: Any) -> Any:
    """Return the shapes and dtypes of the results of `fn`, or raise if JAX cannot trace it."""
    try:
        return jax.eval_shape(fn, *args)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ContractError(
            f"{where} cannot be compiled. JAX says: {type(error).__name__}: {reason} "
            "Write it with jax.numpy, and choose with `jnp.where` instead of `if`."
        ) from error


def _pair(where: str, wanted: str, returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ContractError(f"{where} returns {_describe(returned)}. Return {wanted}.")
    return returned


def _same_shapes(what: str, actual: Any, wanted: Any, advice: str) -> None:
    structure, wanted_structure = jax.tree.structure(actual), jax.tree.structure(wanted)
    if structure != wanted_structure:
        raise ContractError(
            f"{what} has the structure {structure}, but must have {wanted_structure}. {advice}"
        )
    pairs = zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(wanted), strict=True)
    for (path, leaf), want in pairs:
        if (leaf.shape, leaf.dtype) != (want.shape, want.dtype):
            place = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise ContractError(
                f"{what} is {_describe(leaf)}{place}, but must be {_describe(want)}. {advice}"
            )


def _describe(tree: Any) -> str:
    return str(jax.tree.map(lambda x: f"{x.dtype}[{','.join(map(str, x.shape))}]", tree))


class _RandomStep(NamedTuple):
    """One random step of one environment, and a flag for each fault in `_FAULTS`."""

    obs: Obs
    step: Step
    nan: Array
    outside: Array
    reward_not_finite: Array
    ended_twice: Array


_FAULTS = {
    "nan": "an observation contains NaN: {obs} before the step, {step.obs} after it. "
    "Look for a division by zero.",
    "outside": "an observation is outside {env.observation_space}: {obs} before the step, "
    "{step.obs} after it. Widen the space, or clip the observation.",
    "reward_not_finite": "the reward is {step.reward}. Return a finite reward.",
    "ended_twice": "`terminated` and `truncated` are both true. An episode that terminates is not "
    "cut short, so return `truncated & ~terminated` as `truncated`.",
}


def _check_values(env: Env, key: Array) -> None:
    name = type(env).__name__
    keys = jax.random.split(key, NUM_ENVS)
    _trace(f"{name} under `jax.vmap`", _player(env), keys)
    record, again = (jax.device_get(jax.jit(_player(env))(keys)) for _ in range(2))
    for fault, message in _FAULTS.items():
        for index in np.argwhere(getattr(record, fault))[:1]:
            obs, step = jax.tree.map(itemgetter(tuple(index)), (record.obs, record.step))
            problem = message.format(env=env, obs=obs, step=step)
            raise ContractError(f"{name}, step {index[1]} of a random run: {problem}")
    if not jax.tree.all(jax.tree.map(np.array_equal, record, again)):
        raise ContractError(
            f"{name} gave different results in two runs with the same key. Draw all random numbers "
            "from the key with `jax.random`, because generators of numpy and Python run only once, "
            "while JAX traces."
        )


def _player(env: Env) -> Callable[[Array], _RandomStep]:
    """Return a function that runs one environment with random actions for each key.

    Each call of `_player` returns a new function, which JAX has to trace again. If two of them give
    different results for the same keys, some random numbers do not come from the keys.
    """

    def advance(carry: tuple[State, Obs], key: Array) -> tuple[tuple[State, Obs], _RandomStep]:
        state, obs = carry
        k_act, k_env = jax.random.split(key)
        action = env.action_space.sample(k_act)
        state, next_obs, step = auto_reset(env, state, action, k_env)
        inside = env.observation_space.contains(obs) & env.observation_space.contains(step.obs)
        record = _RandomStep(
            obs=obs,
            step=step,
            nan=_any_nan((obs, step.obs)),
            outside=~inside,
            reward_not_finite=~jnp.isfinite(step.reward),
            ended_twice=step.terminated & step.truncated,
        )
        return (state, next_obs), record

    def play(key: Array) -> _RandomStep:
        k_reset, k_run = jax.random.split(key)
        _, record = jax.lax.scan(advance, env.reset(k_reset), jax.random.split(k_run, NUM_STEPS))
        return record

    return jax.vmap(play)


def _any_nan(tree: Any) -> Array:
    return jnp.stack([jnp.isnan(x).any() for x in jax.tree.leaves(tree)]).any()
