"""Distributions against their definitions: sums over all actions, and integrals on a fine grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.ops import Categorical, Distribution, MultiCategorical, Normal, TanhNormal

KEY = jax.random.key(0)
N = 5
LOGITS = jax.random.normal(KEY, (N, 5))
MEAN, LOG_STD = jnp.linspace(-1.0, 1.0, 2 * N).reshape(N, 2), jnp.array([-0.5, 0.3])

EVERY = [
    Categorical(LOGITS),
    MultiCategorical.split(LOGITS, (2, 3)),
    Normal(MEAN, LOG_STD),
    TanhNormal(MEAN, LOG_STD),
]


def name(dist: Distribution) -> str:
    return type(dist).__name__


def row(dist: Distribution, i: int) -> Distribution:
    return jax.tree.map(lambda x: x[i] if x.ndim == 2 else x, dist)


@pytest.mark.parametrize("dist", EVERY, ids=name)
def test_shapes_and_any_leading_axes(dist: Distribution) -> None:
    x, log_prob = dist.sample_and_log_prob(KEY)
    assert x.shape == dist.mode().shape
    assert log_prob.shape == dist.entropy().shape == (N,)
    np.testing.assert_array_equal(x, dist.sample(KEY))
    np.testing.assert_allclose(log_prob, dist.log_prob(x), rtol=1e-5, atol=1e-5)
    tall = jax.tree.map(lambda a: jnp.stack([a, a]) if a.ndim == 2 else a, dist)
    np.testing.assert_allclose(tall.log_prob(jnp.stack([x, x]))[1], log_prob, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tall.entropy()[1], dist.entropy(), rtol=1e-6)


@pytest.mark.parametrize("dist", EVERY, ids=name)
def test_sample_each_is_every_environment_alone(dist: Distribution) -> None:
    keys = jax.random.split(KEY, N)
    samples = dist.sample_each(keys)
    for i in range(N):
        np.testing.assert_allclose(samples[i], row(dist, i).sample(keys[i]), rtol=1e-6)


@pytest.mark.parametrize("dist", EVERY, ids=name)
def test_samples_have_the_entropy(dist: Distribution) -> None:
    many = jax.vmap(dist.sample_and_log_prob)(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(-many[1].mean(0), dist.entropy(), atol=0.08)


def test_categorical_is_its_probabilities() -> None:
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    for action in range(5):
        log_prob = Categorical(LOGITS).log_prob(jnp.full(N, action))
        np.testing.assert_allclose(np.exp(log_prob), p[:, action], rtol=1e-5)
    np.testing.assert_allclose(Categorical(LOGITS).entropy(), -(p * np.log(p)).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(Categorical(LOGITS).mode(), p.argmax(-1))
    drawn = jax.vmap(Categorical(LOGITS).sample)(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(jax.nn.one_hot(drawn, 5).mean(0), p, atol=0.03)


def test_a_masked_action_costs_no_nan() -> None:
    entropy = jax.value_and_grad(lambda logits: Categorical(logits).entropy())
    value, gradient = entropy(jnp.array([0.0, 0.0, -jnp.inf]))
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_multi_categorical_is_independent_choices() -> None:
    both = MultiCategorical.split(LOGITS, (2, 3))
    first, second = Categorical(LOGITS[:, :2]), Categorical(LOGITS[:, 2:])
    x = jnp.stack([jnp.ones(N, int), jnp.full(N, 2)], axis=-1)
    expected = first.log_prob(x[:, 0]) + second.log_prob(x[:, 1])
    np.testing.assert_allclose(both.log_prob(x), expected, rtol=1e-6)
    np.testing.assert_allclose(both.entropy(), first.entropy() + second.entropy(), rtol=1e-6)
    np.testing.assert_array_equal(both.mode(), np.stack([first.mode(), second.mode()], axis=-1))


@pytest.mark.parametrize("make", [Normal, TanhNormal])
def test_density_integrates_to_one_and_gives_the_entropy(make: type[Normal | TanhNormal]) -> None:
    dist = make(jnp.array([0.4]), jnp.array([-0.3]))
    u = np.linspace(-7.0, 7.0, 20001)
    x = np.tanh(u) if make is TanhNormal else u
    log_p = np.asarray(jax.vmap(dist.log_prob)(jnp.asarray(x[:, None], jnp.float32)), np.float64)
    np.testing.assert_allclose(np.trapezoid(np.exp(log_p), x), 1.0, atol=1e-3)
    np.testing.assert_allclose(np.trapezoid(-np.exp(log_p) * log_p, x), dist.entropy(), atol=2e-3)


def test_normal_closed_forms() -> None:
    dist, std = Normal(MEAN, LOG_STD), np.exp(LOG_STD)
    x = np.asarray(MEAN) + 0.7
    density = np.exp(-0.5 * (0.7 / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(np.exp(dist.log_prob(jnp.asarray(x)))[0], density.prod(), rtol=1e-5)
    entropy = 0.5 * np.log(2 * np.pi * np.e * std**2).sum()
    np.testing.assert_allclose(dist.entropy(), np.full(N, entropy), rtol=1e-6)


@pytest.mark.parametrize("u", [-50.0, 0.0, 50.0])
def test_tanh_normal_is_finite_far_out(u: float) -> None:
    def log_prob(mean: jax.Array) -> jax.Array:
        return TanhNormal(mean, jnp.zeros(1)).sample_and_log_prob(KEY)[1]

    value, gradient = jax.value_and_grad(log_prob)(jnp.array([u]))
    assert np.isfinite(value) and np.isfinite(gradient).all()
    at_the_bound = TanhNormal(jnp.array([u]), jnp.zeros(1)).log_prob(jnp.sign(jnp.array([u])))
    assert np.isfinite(at_the_bound)
