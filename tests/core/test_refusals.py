"""Plans that would not give the fused program's numbers are refused before anything runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hocket import ContractError, Place, Plan, PlanError, averaged, fragment, trace
from hocket.core.plan.checks import check
from hocket.ops import standardize
from tests.toys import Toy, ToyState

ACTORS = (Place("actor", run=("env", "act"), replicas=2), Place("learner", run=("learn",)))
WHOLE = (Place("all", run=("env", "act", "learn"), replicas=2),)
SPLIT = (Place("actor", run=("env", "act")), Place("learner", run=("learn",)))


def plan(algorithm: Any, places: tuple[Place, ...], num_envs: int = 8) -> Plan:
    return check(Plan(trace(algorithm, num_envs), places))


@pytest.mark.parametrize("places", [ACTORS, WHOLE, SPLIT])
def test_the_right_one_is_accepted(places: tuple[Place, ...]) -> None:
    assert plan(Toy(), places).places == places


class SharedKeyNoise(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return jax.random.normal(jax.random.key(3), x.shape)


def test_noise_from_one_shared_key() -> None:
    with pytest.raises(PlanError, match=r"`random_bits` at .*one key.*one key per environment"):
        plan(SharedKeyNoise(), ACTORS)


class NumberedEpsilons(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return (0.4 ** (1 + jnp.arange(x.shape[0]) / 7))[:, None] * x


def test_epsilons_from_arange() -> None:
    with pytest.raises(PlanError, match=r"`iota` at test_refusals.py.*arange\(num_envs\).*`init`"):
        plan(NumberedEpsilons(), ACTORS)


class LocallyNormalized(Toy):
    def loss(self, w: Any, xs: Any) -> Any:
        target = jnp.sin(xs).sum(-1)
        target = (target - target.mean()) / (target.std() + 1e-8)
        return jnp.square(xs @ w - target).mean()


class RightlyNormalized(Toy):
    def loss(self, w: Any, xs: Any) -> Any:
        return jnp.square(xs @ w - standardize(jnp.sin(xs).sum(-1))).mean()


def test_normalizing_without_averaged() -> None:
    with pytest.raises(
        PlanError, match=r"`all` cannot run as replicas.*wrap the mean in `averaged"
    ):
        plan(LocallyNormalized(), WHOLE)
    plan(RightlyNormalized(), WHOLE)
    plan(LocallyNormalized(), ACTORS)  # the learner is one program: nothing wrong there


class AveragedVariance(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w / (1 + averaged(xs.var())), key, averaged(xs.mean())


def test_averaged_variance() -> None:
    with pytest.raises(PlanError, match=r"`w` of the state.*test_refusals.*before it is averaged"):
        plan(AveragedVariance(), WHOLE)


class AveragedSum(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w + averaged(xs.sum((0, 1))), key, averaged(xs.mean())


def test_averaged_sum() -> None:
    with pytest.raises(PlanError, match=r"given a sum over environments"):
        plan(AveragedSum(), WHOLE)


class AveragedPerEnvironment(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w + averaged(xs).mean((0, 1)), key, averaged(xs.mean())


def test_averaged_of_per_environment_values() -> None:
    with pytest.raises(PlanError, match=r"one value per environment: take their mean first"):
        plan(AveragedPerEnvironment(), WHOLE)


class AveragedUnderLocalPredicate(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        gradient = jax.grad(self.loss)(w, xs)
        w = lax.cond(xs.mean() > 0, lambda: w - averaged(gradient), lambda: w)
        return w, key, averaged(xs.mean())


class AveragedUnderUniformPredicate(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        gradient = jax.grad(self.loss)(w, xs)
        w = lax.cond(averaged(xs.mean()) > 0, lambda: w - averaged(gradient), lambda: w)
        return w, key, averaged(xs.mean())


def test_averaged_under_a_predicate_that_differs() -> None:
    with pytest.raises(PlanError, match=r"`averaged` stands under a `cond`.*wait for each other"):
        plan(AveragedUnderLocalPredicate(), WHOLE)
    plan(AveragedUnderUniformPredicate(), WHOLE)


class Flattening(Toy):
    @fragment(role="act", name="flatten")
    def flatten(self, xs: Any) -> Any:
        return xs.reshape(-1, 4)

    def seen(self, xs: Any) -> Any:
        return self.flatten(xs)


def test_flattened_value_crossing_from_replicas() -> None:
    with pytest.raises(
        PlanError, match=r"output 0 of `flatten`, sent to `learner`.*\[24, 4\].*two axes"
    ):
        plan(Flattening(), ACTORS)
    plan(Flattening(), SPLIT)
    plan(Flattening(), WHOLE)  # nobody sees it outside of one replica


def test_a_fragment_no_place_runs() -> None:
    with pytest.raises(PlanError, match=r"fragment `update` \(role `learn`\) is run by no place"):
        plan(Toy(), (Place("actor", run=("env", "act")),))


def test_a_fragment_two_places_run() -> None:
    with pytest.raises(PlanError, match=r"`update` .* is run by 2 places \(all, learner\)"):
        plan(Toy(), (Place("all", run=("env", "act", "learn")), Place("learner", run=("learn",))))


def test_an_unknown_name_in_run() -> None:
    with pytest.raises(
        PlanError, match=r"unknown fragment or role `lern` in `run` of the place `a`.*`learn`"
    ):
        plan(Toy(), (Place("a", run=("env", "act", "lern")),))


def test_a_place_without_work() -> None:
    with pytest.raises(PlanError, match="`store` runs no fragment"):
        plan(Toy(), (*SPLIT, Place("store", run=("replay",))))


class Branching(Toy):
    def step(self, state: ToyState) -> tuple[ToyState, dict[str, Any]]:
        def both() -> Any:
            x = self.env(state.x, self.act(state.w, state.x), state.keys)
            return x, *self.update(state.w, state.key, x[None])[:2]

        x, w, key = lax.cond(state.w[0] > -1e9, both, lambda: (state.x, state.w, state.key))
        return state._replace(x=x, w=w, key=key), {}


def test_a_fragment_under_cond_that_would_cross() -> None:
    with pytest.raises(
        PlanError, match=r"under one `cond` .*`act` on `actor`.*`update` on `learner`"
    ):
        plan(Branching(), SPLIT)
    plan(Branching(), (Place("all", run=("env", "act", "learn")),))


def test_environments_that_cannot_be_shared() -> None:
    with pytest.raises(
        PlanError, match="9 environments cannot be shared equally by 2 replicas of `actor`"
    ):
        plan(Toy(), ACTORS, num_envs=9)


def test_replicas_that_cannot_be_routed() -> None:
    places = (Place("a", run=("env", "act"), replicas=2), Place("l", run=("learn",), replicas=3))
    with pytest.raises(PlanError, match="one number a multiple of the other"):
        plan(TwoLearners(), places, num_envs=12)


class TwoLearners(Toy):
    """A learner without `averaged`, so that its replicas do not run as one program."""

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w, key, jnp.zeros(())


class ChangesStructure(Toy):
    def step(self, state: ToyState) -> Any:
        return (state.x, state.w), {}


class ChangesDtype(Toy):
    def step(self, state: ToyState) -> Any:
        return super().step(state)[0]._replace(w=state.w.astype(jnp.float16)), {}


class ReturnsNoMetrics(Toy):
    def step(self, state: ToyState) -> Any:
        return super().step(state)[0]


def test_a_step_that_changes_its_state() -> None:
    with pytest.raises(ContractError, match=r"ChangesStructure\.step changes the structure.*loses"):
        trace(ChangesStructure(), 8)
    with pytest.raises(ContractError, match=r"changes `w` .* float32\[4\] to float16\[4\]"):
        trace(ChangesDtype(), 8)
    with pytest.raises(ContractError, match=r"must return \(state, metrics\)"):
        trace(ReturnsNoMetrics(), 8)


class AnotherProgram(Toy):
    def step(self, state: ToyState) -> Any:
        return Toy(length=state.x.shape[0]).step(state)


def test_a_program_that_depends_on_the_number_of_environments() -> None:
    with pytest.raises(ContractError, match="a different program with 4 environments than with 8"):
        plan(AnotherProgram(), ACTORS)


class LocalMetric(Toy):
    def step(self, state: ToyState) -> Any:
        state, _ = super().step(state)
        return state, {"largest": state.x.max()}


def test_a_metric_that_cannot_be_joined() -> None:
    with pytest.raises(PlanError, match=r"metric `largest`.*only a mean can be averaged"):
        plan(LocalMetric(), WHOLE)


class SharedRing(Toy):
    """One buffer for all environments: neither per-environment nor uniform."""

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w.at[:2].set(xs[0, :2, 0]), key, averaged(xs.mean())


def test_one_buffer_for_all_environments() -> None:
    with pytest.raises(PlanError, match=r"`w` of the state"):
        plan(SharedRing(), WHOLE)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_no_environments(num_envs: int) -> None:
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        trace(Toy(), num_envs)


# Each of these was once accepted and computed other numbers. `n` is the number of environments of
# the program that is traced; `w` is the same for all environments.
UNSOUND: dict[str, Any] = {
    "a program that depends on a replica's size": lambda x, w, n: x * (2.0 if n > 4 else 3.0),
    "a number that stops growing": lambda x, w, n: x / min(n, 8),
    "a table cut to the number of environments": lambda x, w, n: x + jnp.tile(w, 10)[:n, None],
    "a dynamic cut of that size": lambda x, w, n: (
        x + lax.dynamic_slice(jnp.tile(w, 10), (jnp.argmax(w),), (n,))[:, None]
    ),
    "an element of that number": lambda x, w, n: x + jnp.tile(w, 10)[n],
    "a roll by that number": lambda x, w, n: x + jnp.roll(jnp.tile(w, 10), n)[None, :4],
    "the best environments": lambda x, w, n: x + averaged(lax.top_k(x.T, 2)[0].sum() / n),
    "a sum that is rounded": lambda x, w, n: (
        x + averaged(lax.div((9 * x).astype(int).sum(), n).astype(float))
    ),
    "zero to the power of zero": lambda x, w, n: (
        x + averaged(lax.integer_pow(jnp.zeros(n), 0).sum())
    ),
    "a table of environments": lambda x, w, n: (
        x + averaged(jnp.zeros(n).at[(x[:, 0] > 0).astype(int)].add(x[:, 1]) / n)[:, None]
    ),
    "other equations": lambda x, w, n: x + jnp.concatenate([w] * n).sum(),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_subtly_wrong_programs(name: str) -> None:
    class Wrong(Toy):
        @fragment
        def act(self, w: Any, x: Any) -> Any:
            return UNSOUND[name](x, w + jnp.arange(4.0), x.shape[0]).sum(-1)

    with pytest.raises(PlanError, match="cannot run as replicas"):
        plan(Wrong(), ACTORS)


class CountsEnvironments(Toy):
    def step(self, state: ToyState) -> Any:
        state, metrics = super().step(state)
        return state, metrics | {"environments": jnp.float32(state.x.shape[0])}


def test_a_metric_that_is_a_constant() -> None:
    with pytest.raises(PlanError, match=r"metric `environments`.*smaller in a replica"):
        plan(CountsEnvironments(), WHOLE)
    plan(CountsEnvironments(), ACTORS)  # the learner, which is one program, reports it


def test_averaged_takes_floating_point() -> None:
    with pytest.raises(TypeError, match="floating point; found int32"):
        averaged(jnp.arange(3))


class TwoOfOneName(Toy):
    def step(self, state: ToyState) -> Any:
        state, _ = super().step(state)
        other = fragment(role="replay", name="act")(lambda x: 2 * x)
        return state, {"x": other(state.x)}


class NestedMetrics(Toy):
    def step(self, state: ToyState) -> Any:
        return super().step(state)[0], {"a": {"b": state.w}}


def test_names_and_metrics() -> None:
    with pytest.raises(ContractError, match="two fragments named `act`"):
        trace(TwoOfOneName(), 8)
    with pytest.raises(ContractError, match=r"the metric `a` .* must be one array"):
        trace(NestedMetrics(), 8)
