"""The kinds that each primitive makes of its inputs' kinds, alone and in an algorithm's step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hocket import PlanError, averaged, fragment
from hocket.core.analysis.kinds import UNIFORM, Kind
from hocket.ops import standardize
from tests.core.analysis.walked import COUNT, MEAN, PER_ENV, SUM, Array, kind_of, kinds_of
from tests.core.plans import ACTORS, WHOLE, checked
from tests.toys import Toy

X = Array(PER_ENV, ("n", 3))
W = Array(UNIFORM, (3,))
TIMES = Array(Kind("per_env", axis=1, outer=1), (5, "n"))
KEYS = Array(PER_ENV, ("n",), jax.random.key(0).dtype)


@pytest.mark.parametrize(
    ("fn", "axis"),
    [
        (lambda x: x.T, 1),
        (lambda x: x[:, None], 0),
        (lambda x: x[None], 1),
        (lambda x: x[:, :2], 0),
        (lambda x: jnp.flip(x, 1), 0),
        (lambda x: jnp.concatenate([x, x], 1), 0),
        (lambda x: jnp.stack([x, x]), 1),
        (lambda x: jnp.pad(x, ((0, 0), (1, 1))), 0),
        (lambda x: jnp.cumsum(x, 1), 0),
        (lambda x: jnp.sort(x, 1), 0),
        (lambda x: x.max(1), 0),
        (lambda x: jnp.argmax(x, 1), 0),
        (lambda x: x.sum(1), 0),
        (lambda x: lax.top_k(x, 2)[0].T, 1),
    ],
)
def test_an_environment_axis_goes_where_the_primitive_puts_it(fn: Any, axis: int) -> None:
    assert kinds_of(fn, [X])[0] == Kind("per_env", axis, outer=1)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[:2],
        lambda x: jnp.flip(x, 0),
        lambda x: jnp.concatenate([x, x]),
        lambda x: jnp.cumsum(x, 0),
        lambda x: jnp.sort(x, 0),
        lambda x: x.max(0),
        lambda x: jnp.argmin(x, 0),
        lambda x: x.prod(0),
    ],
)
def test_what_picks_reorders_or_reduces_environments_is_local(fn: Any) -> None:
    assert kinds_of(fn, [X])[0].tag == "local"


def test_sums_and_means_over_environments_are_partial() -> None:
    assert kind_of(lambda x: x.sum(0), X) == SUM
    assert kind_of(lambda x: x.mean(0), X) == MEAN
    assert kind_of(lambda x: averaged(x.mean()), X) == UNIFORM


def test_a_reshape_keeps_environments_apart_or_is_local() -> None:
    """Memory is row-major: steps may be merged before environments, and taken apart again."""
    merged = kind_of(lambda x: x.reshape(-1), TIMES)
    assert merged == Kind("per_env", axis=0, outer=5)
    assert kind_of(lambda x: x.reshape(-1).reshape(5, -1), TIMES) == TIMES.kind
    assert kind_of(lambda x: x.reshape(-1, 3, 1), X) == Kind("per_env", axis=0, outer=1)
    assert "mixes environments" in kind_of(lambda x: x.reshape(2, -1), TIMES).why


def test_a_matrix_product_keeps_environments_or_sums_over_them() -> None:
    assert kind_of(lambda x, w: x @ w, X, W) == PER_ENV
    assert kind_of(lambda w, x: w @ x.T, W, X) == PER_ENV
    assert kind_of(lambda x, y: x.T @ y, X, X) == SUM  # a gradient, summed over a batch
    assert "two axes" in kind_of(lambda x, y: x @ y.T, X, X).why
    batched = kind_of(lambda x, y: jnp.einsum("nij,njk->nik", x[:, None], y[:, :, None]), X, X)
    assert batched == PER_ENV


def test_a_convolution_keeps_environments_of_its_batch() -> None:
    images, kernel = Array(PER_ENV, ("n", 1, 5, 5)), Array(UNIFORM, (2, 1, 3, 3))
    assert kind_of(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), images, kernel) == PER_ENV
    own = Array(MEAN, (2, 1, 3, 3))
    assert kind_of(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), images, own).tag == "local"


def test_rows_for_environments_are_not_made_from_their_number() -> None:
    assert "numbers the environments" in kind_of(lambda x: jnp.arange(x.shape[0]), X).why
    assert kind_of(lambda x: jnp.arange(5), X) == UNIFORM
    zeros = kind_of(lambda x: jnp.zeros(x.shape[0]), X)
    assert (zeros.tag, zeros.zero) == ("per_env", True)


def test_noise_is_right_from_one_key_for_each_environment() -> None:
    def noise(keys: Any) -> Any:
        return jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)

    assert kind_of(noise, KEYS) == PER_ENV
    one = Array(UNIFORM, (), KEYS.dtype)
    assert kind_of(lambda key: jax.random.normal(key, (3,)), one) == UNIFORM
    shared = kind_of(lambda x, key: x + jax.random.normal(key, x.shape), X, one)
    assert "one key per environment" in shared.why


def test_a_choice_is_as_its_cases_are() -> None:
    mean, flag = Array(MEAN), Array(UNIFORM, (), jnp.bool_)
    each = Array(PER_ENV, ("n",), jnp.bool_)
    assert kind_of(lambda f, m: lax.select(f, m, m), flag, mean) == MEAN
    assert kind_of(lambda f, x: lax.select(f, x.sum(1), x.max(1)), each, X) == PER_ENV
    assert kind_of(lambda x, m: lax.select(x[0, 0] > 0, m, m), X, mean).tag == "local"


def test_degrees_follow_products_powers_and_comparisons() -> None:
    count, total = Array(COUNT), Array(SUM)
    assert kind_of(lambda n: n * n, count) == Kind("uniform", degree=2)
    assert kind_of(lambda n: n**3, count) == Kind("uniform", degree=3)
    assert kind_of(lambda s, n: s / n, total, count) == MEAN
    assert kind_of(lambda n: n > 0.0, count) == UNIFORM  # the sign is the same for any number
    assert kind_of(lambda n: n > 1.0, count).tag == "local"


def test_whole_numbers_are_not_divided_or_rounded_linearly() -> None:
    total, count = Array(SUM, (), jnp.int32), Array(COUNT, (), jnp.int32)
    assert kind_of(lambda s, n: lax.div(s, n), total, count).tag == "local"
    assert kind_of(lambda m: m.astype(jnp.int32), Array(MEAN)).tag == "local"
    assert kind_of(lambda m: m.astype(jnp.float16), Array(MEAN)) == MEAN


# In the step of an algorithm


class SharedKeyNoise(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return jax.random.normal(jax.random.key(3), x.shape)


def test_noise_from_one_shared_key() -> None:
    with pytest.raises(PlanError, match=r"`random_bits` at .*one key.*one key per environment"):
        checked(SharedKeyNoise(), ACTORS)


class NumberedEpsilons(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return (0.4 ** (1 + jnp.arange(x.shape[0]) / 7))[:, None] * x


def test_epsilons_from_arange() -> None:
    with pytest.raises(PlanError, match=r"`iota` at test_rules.py.*arange\(num_envs\).*`init`"):
        checked(NumberedEpsilons(), ACTORS)


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
        checked(LocallyNormalized(), WHOLE)
    checked(RightlyNormalized(), WHOLE)
    checked(LocallyNormalized(), ACTORS)  # the learner is one program: nothing wrong there


class AveragedVariance(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w / (1 + averaged(xs.var())), key, averaged(xs.mean())


def test_averaged_variance() -> None:
    with pytest.raises(PlanError, match=r"`w` of the state.*test_rules.*before it is averaged"):
        checked(AveragedVariance(), WHOLE)


class AveragedSum(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w + averaged(xs.sum((0, 1))), key, averaged(xs.mean())


def test_averaged_sum() -> None:
    with pytest.raises(PlanError, match=r"given a sum over environments"):
        checked(AveragedSum(), WHOLE)


class AveragedPerEnvironment(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        return w + averaged(xs).mean((0, 1)), key, averaged(xs.mean())


def test_averaged_of_per_environment_values() -> None:
    with pytest.raises(PlanError, match=r"one value per environment: take their mean first"):
        checked(AveragedPerEnvironment(), WHOLE)


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
        checked(Wrong(), ACTORS)
