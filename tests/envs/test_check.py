"""`check_env` accepts our environments, and names what is wrong with broken ones."""

import random
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from hocket.envs import Box, DictSpace, Discrete, Step, check_env, make
from hocket.errors import ContractError

OURS = ["Acrobot-v1", "CartPole-v1", "Catch", "MountainCar-v0", "Pendulum-v1", "Quadruped-v1"]


@dataclass(frozen=True)
class Walk:
    """A random walk on a line: the correct environment from which the broken ones inherit."""

    @property
    def observation_space(self) -> Any:
        return Box(-100.0, 100.0, shape=(1,))

    @property
    def action_space(self) -> Any:
        return Discrete(2)

    def reset(self, key: Array) -> Any:
        return {"x": jnp.zeros((1,))}, jnp.zeros((1,))

    def step(self, state: Any, action: Array, key: Array) -> Any:
        x = state["x"] + 2.0 * action - 1.0
        ended = abs(x[0]) > 3
        return {"x": x}, Step(x, jnp.float32(1.0), ended, jnp.bool_(False))


@dataclass(frozen=True)
class Altered(Walk):
    """A walk with an alteration of each step's new state or `Step`."""

    alteration: Any

    def step(self, state: Any, action: Array, key: Array) -> Any:
        after, step = super().step(state, action, key)
        return self.alteration(after, step)


@pytest.mark.parametrize("name", OURS)
def test_ours_keep_the_contract(name: str) -> None:
    check_env(make(name))


def test_the_plain_walk_keeps_the_contract() -> None:
    check_env(Walk())


ALTERATIONS = {
    "dtype of the observation": (
        lambda s, step: (s, step._replace(obs=step.obs.astype(jnp.int32))),
        r"observation of Altered.step is int32\[1\], but must be float32\[1\]",
    ),
    "shape of the observation": (
        lambda s, step: (s, step._replace(obs=step.obs[0])),
        r"observation of Altered.step is float32\[\], but must be float32\[1\]",
    ),
    "structure of the state": (
        lambda s, step: ({**s, "extra": jnp.zeros(())}, step),
        r"state of Altered.step has the structure .*extra.* like the one that came in",
    ),
    "dtype of the state": (
        lambda s, step: ({"x": s["x"].astype(jnp.int32)}, step),
        r"state of Altered.step is int32\[1\] at \['x'\], but must be float32\[1\]",
    ),
    "shape of the reward": (
        lambda s, step: (s, step._replace(reward=step.obs)),
        r"`reward` of Altered.step is float32\[1\].*one float32 scalar",
    ),
    "dtype of terminated": (
        lambda s, step: (s, step._replace(terminated=jnp.float32(0.0))),
        r"`terminated` of Altered.step is float32\[\], but must be bool\[\]",
    ),
    "shape of truncated": (
        lambda s, step: (s, step._replace(truncated=jnp.zeros((1,), bool))),
        r"`truncated` of Altered.step is bool\[1\]",
    ),
    "both ends at once": (
        lambda s, step: (s, step._replace(truncated=step.terminated)),
        r"step \d+ of a random run: `terminated` and `truncated` are both true",
    ),
    "NaN in an observation": (
        lambda s, step: (s, step._replace(obs=jnp.where(step.obs > 1, jnp.nan, step.obs))),
        r"step \d+ of a random run: an observation contains NaN",
    ),
    "an infinite reward": (
        lambda s, step: (s, step._replace(reward=1 / abs(step.obs[0]))),
        r"step \d+ of a random run: the reward is inf",
    ),
    "an observation outside its space": (
        lambda s, step: (s, step._replace(obs=step.obs * 100)),
        r"is outside Box\(low=-100.0.*200.*Widen the space",
    ),
    "a tuple for a Step": (
        lambda s, step: (s, tuple(step)),
        r"Altered.step returns \(state, tuple\). Return \(state, Step",
    ),
    "five values, as Gymnasium has": (
        lambda s, step: (*step, {}),
        r"Altered.step returns .*bool\[\].* Return \(state, Step\)",
    ),
    "a Python branch": (
        lambda s, step: (s, step if step.terminated else step._replace(reward=step.reward - 1)),
        r"Altered.step cannot be compiled. JAX says: TracerBoolConversionError.*`jnp.where`",
    ),
    "randomness of Python's own": (
        lambda s, step: (s, step._replace(reward=jnp.float32(random.random()))),
        r"different results in two runs with the same key.*`jax.random`",
    ),
}


@pytest.mark.parametrize("case", ALTERATIONS)
def test_a_broken_step_is_named(case: str) -> None:
    alteration, message = ALTERATIONS[case]
    with pytest.raises(ContractError, match=f"(?s){message}"):
        check_env(Altered(alteration))


def test_a_broken_reset_is_named() -> None:
    class WrongShape(Walk):
        def reset(self, key: Array) -> Any:
            return {"x": jnp.zeros((1,))}, jnp.zeros((2,))

    class OnlyObs(Walk):
        def reset(self, key: Array) -> Any:
            return jnp.zeros((1,))

    with pytest.raises(ContractError, match=r"WrongShape.reset is float32\[2\]"):
        check_env(WrongShape())
    with pytest.raises(ContractError, match=r"OnlyObs.reset returns float32\[1\]. Return \(state"):
        check_env(OnlyObs())


def test_broken_spaces_are_named() -> None:
    class NoBox(Walk):
        @property
        def observation_space(self) -> Any:
            return (1,)

    class Nested(Walk):
        @property
        def observation_space(self) -> Any:
            return DictSpace({"x": Box(-1.0, 1.0, (1,))})

    with pytest.raises(ContractError, match=r"NoBox.observation_space is \(1,\)"):
        check_env(NoBox())
    with pytest.raises(ContractError, match=r"observation of Nested.reset has the structure"):
        check_env(Nested())


def test_a_missing_method_is_named() -> None:
    class Half:
        action_space = Discrete(2)

        def reset(self, key: Array) -> Any: ...

    with pytest.raises(ContractError, match=r"Half has no `observation_space`, `step`"):
        check_env(Half())  # pyright: ignore[reportArgumentType]


def test_what_cannot_be_vmapped_is_named() -> None:
    def alteration(state: Any, step: Step) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return state, step._replace(reward=jax.pure_callback(lambda x: x, shape, step.reward))

    with pytest.raises(ContractError, match=r"Altered under `jax.vmap` cannot be compiled"):
        check_env(Altered(lambda s, step: alteration(s, step._replace(reward=step.obs[0]))))
