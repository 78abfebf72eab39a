"""PPO: its loss, its advantages, its schedule, and what its policy does."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from hocket.algorithms.actor_critic import State, seen
from hocket.algorithms.heads import head_for
from hocket.algorithms.ppo import PPO, LossInputs, ppo_loss, staying_near
from hocket.envs import Box, DictSpace, Discrete, Env, MultiDiscrete, Pendulum, TimeLimit, make
from hocket.envs.unroll import Rollout, unroll
from hocket.ops import Categorical, Moments, clipped_surrogate
from hocket.testing import difference
from hocket.training.loop import program

KEY = jax.random.key(0)
N = 8


def small(env: Env | None = None, **options: Any) -> PPO:
    options = {"length": 12, "minibatches": 3, "hidden": (16,), "env_steps": 3 * N * 12, **options}
    return PPO(env=env or make("CartPole-v1"), **options)


@cache
def train(algo: PPO, iterations: int) -> tuple[State, dict[str, Array]]:
    """The state after some iterations, and the metrics of the last."""
    if iterations == 0:
        return jax.jit(algo.init, static_argnums=1)(KEY, N), {}
    return compiled_step(algo)(train(algo, iterations - 1)[0])


@cache
def compiled_step(algo: PPO) -> Callable[[State], tuple[State, dict[str, Array]]]:
    return jax.jit(algo.step)


@partial(jax.jit, static_argnums=0)
def rollout_of(algo: PPO, state: State) -> Rollout:
    act = partial(algo.act, state.learner.params.policy, state.learner.moments)
    return unroll(algo.env, act, state.actor, algo.length)[1]


def test_the_loss_is_that_of_the_paper() -> None:
    keys = jax.random.split(KEY, 6)
    logits, value, old, advantage, target = (jax.random.normal(k, (5, N)) for k in keys[:5])
    logits = jnp.stack([logits, -logits], axis=-1)
    action = jax.random.bernoulli(keys[5], shape=(5, N)).astype(int)
    batch = LossInputs(jnp.zeros((5, N, 1)), action, 0.3 * old - 0.7, advantage, target)
    loss, metrics = ppo_loss(
        Categorical(logits), value, batch, clip=0.2, value_weight=0.5, entropy_weight=0.01
    )

    log_p = np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    log_prob = np.take_along_axis(log_p, np.asarray(action)[..., None], -1)[..., 0]
    ratio = np.exp(log_prob - batch.log_prob)
    a = (advantage - advantage.mean()) / advantage.std()
    policy = -np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a).mean()
    error = 0.5 * np.square(value - target).mean()
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    np.testing.assert_allclose(loss, policy + 0.5 * error - 0.01 * entropy, rtol=1e-5)
    np.testing.assert_allclose(metrics["kl"], (ratio - 1 - np.log(ratio)).mean(), rtol=1e-4)


def test_decoupled_is_the_same_where_no_sample_is_late() -> None:
    (state, _), (decoupled, _) = (train(small(decoupled=way), 2) for way in (False, True))
    assert difference(train(small(), 0)[0].learner.params, state.learner.params) > 1e-3
    assert difference(state.learner.params, decoupled.learner.params) <= 1e-5


def test_decoupled_stays_near_the_policy_before_the_update() -> None:
    """The change of the policy since a sample was chosen weighs the sample, but clips nothing."""
    log_prob, sample = jnp.log(jnp.array([0.25])), jnp.array([0])
    before = jnp.log(jnp.array([[0.5, 0.5]]))

    def slope(near: Categorical | None) -> Array:
        proximal, weight = staying_near(near, sample, log_prob)
        batch = LossInputs(jnp.zeros((1, 1)), sample, proximal, jnp.ones(1), jnp.zeros(1), weight)

        def loss(logits: Array) -> Array:
            now = Categorical(logits).log_prob(sample)
            weights = 1.0 if batch.weight is None else batch.weight
            return clipped_surrogate(now, batch.log_prob, weights * batch.advantage, clip=0.2).sum()

        return jax.grad(loss)(before)

    # The sample is twice as likely as when it was chosen: beyond the clip of the one, and at the
    # centre of the other, where the ratio's slope is that of the log-probability, times two.
    np.testing.assert_array_equal(slope(None), 0.0)
    np.testing.assert_allclose(slope(Categorical(before)), [[-1.0, 1.0]], rtol=1e-6)


def test_a_batch_is_weighed_in_the_loss() -> None:
    keys = jax.random.split(KEY, 3)
    logits, advantage = jax.random.normal(keys[0], (N, 2)), jax.random.normal(keys[1], (N,))
    sample, weight = jnp.zeros(N, int), jnp.exp(jax.random.normal(keys[2], (N,)))
    choices = Categorical(logits)
    batch = LossInputs(logits, sample, choices.log_prob(sample), advantage, jnp.zeros(N), weight)
    loss, _ = ppo_loss(choices, jnp.zeros(N), batch, clip=0.2, value_weight=0.0, entropy_weight=0.0)
    standard = (advantage - advantage.mean()) / advantage.std()
    np.testing.assert_allclose(loss, -(weight * standard).mean(), rtol=1e-4)


def test_a_truncated_episode_bootstraps_from_its_last_observation() -> None:
    algo = small(TimeLimit(Pendulum(), 5))
    state, _ = train(algo, 2)
    rollout = rollout_of(algo, state)
    scale = Moments(jnp.array(-3.0), jnp.array(4.0), jnp.ones(()))
    learner = state.learner._replace(returns=scale)
    batch, returns = jax.jit(algo._batch)(learner, rollout)
    network: Any = algo._agent.network

    def value(obs: Any) -> np.ndarray:
        net = network.value.apply(learner.params.value, seen(learner.moments, obs))
        return np.asarray(-3.0 + 2.0 * net[..., 0])

    v, v_next = value(rollout.obs), value(rollout.next_obs)
    assert rollout.truncated.any() and not rollout.terminated.any()
    expected = np.zeros((13, N))
    for t in reversed(range(12)):
        delta = np.asarray(rollout.reward[t]) + 0.99 * v_next[t] - v[t]
        expected[t] = delta + 0.99 * 0.95 * ~np.asarray(rollout.truncated[t]) * expected[t + 1]
    np.testing.assert_allclose(batch.advantage, expected[:12], rtol=1e-3, atol=1e-3)
    target = returns.denormalize(batch.target)
    np.testing.assert_allclose(target, expected[:12] + v, rtol=1e-3, atol=1e-3)


def test_nothing_has_moved_before_the_first_update() -> None:
    _, metrics = train(small(learning_rate=0.0), 2)
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)


def test_the_learning_rate_falls_to_zero_over_the_budget() -> None:
    (before, _), (after, _) = train(small(), 3), train(small(), 4)
    np.testing.assert_allclose(before.learner.progress, 1.0, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, after.learner.params, before.learner.params)


def test_the_learning_rate_stays_where_it_is_not_annealed() -> None:
    (before, _), (after, _) = (train(small(anneal=False), n) for n in (3, 4))
    same = jax.tree.map(np.array_equal, after.learner.params, before.learner.params)
    assert not any(jax.tree.leaves(same))


def test_the_policy_is_greedy_unless_it_explores() -> None:
    algo = small()
    state, _ = train(algo, 3)
    obs, keys = jnp.array([0.01, 0.2, -0.02, 0.1]), jax.random.split(KEY, 64)

    @partial(jax.jit, static_argnums=0)
    def actions(explore: bool) -> Array:
        policy = algo.policy(state, explore)
        return jax.vmap(lambda key: policy(obs, policy.memory, key)[0])(keys)

    network: Any = algo._agent.network
    learner = state.learner
    logits = network.policy.apply(learner.params.policy, seen(learner.moments, obs))
    assert (actions(False) == jnp.argmax(logits)).all()
    assert set(actions(True).tolist()) == {0, 1}


def test_continuous_actions_stay_in_bounds() -> None:
    algo = small(TimeLimit(Pendulum(), 5))
    state, metrics = train(algo, 2)
    action = rollout_of(algo, state).action
    assert np.abs(action).max() <= 2.0 and action.std() > 0.5
    assert np.isfinite(metrics["value_loss"]).all()


def test_heads_scale_what_is_bounded_and_clip_the_rest() -> None:
    sample = jnp.array([-3.0, 0.5])
    bounded = head_for(Box((0.0, -2.0), (1.0, 2.0), shape=(2,)), "PPO").action(sample)
    np.testing.assert_allclose(bounded, [0.0, 1.0])
    half = head_for(Box((0.0, -np.inf), np.inf, shape=(2,)), "PPO").action(sample)
    np.testing.assert_allclose(half, [0.0, 0.5])


def test_several_choices_at_once() -> None:
    head = head_for(MultiDiscrete((2, 3)), "PPO")
    choices = head.distribution(jnp.zeros((N, head.size)))
    assert choices.sample_each(jax.random.split(KEY, N)).shape == (N, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "`length` of PPO must be at least 1, found 0"),
        ({"hidden": [16, 0]}, "`hidden` of PPO must be at least 1, found \\[16, 0\\]"),
        ({"env_steps": float("nan")}, "`env_steps` of PPO must be at least 1, found nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_a_horizon_can_be_vmapped() -> None:
    def train(env_steps: Array) -> Any:
        return program(small(env_steps=env_steps, hidden=[8]), num_envs=N, iterations=1)(KEY)

    _, metrics = jax.eval_shape(jax.vmap(train), jnp.array([1e3, 1e4]))
    assert metrics["policy_loss"].shape == (2, 1)


def test_it_says_which_actions_it_cannot_take() -> None:
    space = DictSpace({"push": Discrete(2)})
    with pytest.raises(ValueError, match=r"PPO cannot act in DictSpace.*flatten the action"):
        head_for(space, who="PPO")
    with pytest.raises(ValueError, match="Discrete, MultiDiscrete and Box with one axis"):
        head_for(Box(-1.0, 1.0, shape=(2, 2)), who="PPO")


def test_it_learns_catch() -> None:
    _, metrics = train(PPO(env=make("Catch"), env_steps=30 * N * 128), 30)
    assert metrics["episode_return"].sum() / metrics["episode_count"].sum() > 0.5
