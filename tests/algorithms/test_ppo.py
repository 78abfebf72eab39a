"""PPO: its loss, its advantages, its schedule, and what its policy does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.algorithms.heads import head_for
from hocket.algorithms.ppo import PPO, Batch, Params, denormalize, ppo_loss
from hocket.envs import Box, DictSpace, Discrete, MultiDiscrete, Pendulum, TimeLimit, make
from hocket.envs.unroll import unroll
from hocket.ops import Categorical, Moments

KEY = jax.random.key(0)
N = 8


def small(env: Any = None, **options: Any) -> PPO:
    options = {"length": 16, "hidden": (16,), "env_steps": 2048, **options}
    return PPO(env=env or make("CartPole-v1"), **options)


def train(algo: PPO, iterations: int) -> tuple[Any, Any]:
    @jax.jit
    def run(key: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda s, _: algo.step(s), algo.init(key, N), None, iterations)

    return run(KEY)


def test_the_loss_is_that_of_the_paper() -> None:
    keys = jax.random.split(KEY, 6)
    logits, value, old, advantage, target = (jax.random.normal(k, (5, N)) for k in keys[:5])
    logits = jnp.stack([logits, -logits], axis=-1)
    action = jax.random.bernoulli(keys[5], shape=(5, N)).astype(int)
    batch = Batch(jnp.zeros((5, N, 1)), action, 0.3 * old - 0.7, advantage, target)
    loss, metrics = ppo_loss(
        Categorical(logits), value, batch, clip=0.2, value_weight=0.5, entropy_weight=0.01
    )

    log_p = np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    log_prob = np.take_along_axis(log_p, np.asarray(action)[..., None], -1)[..., 0]
    ratio = np.exp(log_prob - batch.log_prob)
    a = (advantage - advantage.mean()) / (advantage.std() + 0.05)
    policy = -np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a).mean()
    error = 0.5 * np.square(value - target).mean()
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    np.testing.assert_allclose(loss, policy + 0.5 * error - 0.01 * entropy, rtol=1e-5)
    np.testing.assert_allclose(metrics["kl"], (ratio - 1 - np.log(ratio)).mean(), rtol=1e-4)


def test_a_truncated_episode_bootstraps_from_its_last_observation() -> None:
    algo = small(TimeLimit(Pendulum(), 5), length=12)
    state = algo.init(KEY, N)
    learner = state.learner._replace(returns=Moments(jnp.array(-3.0), jnp.array(4.0), jnp.ones(())))
    act = lambda *args: algo.act(learner.params.policy, learner.moments, *args)  # noqa: E731
    _, rollout = unroll(algo.env, act, state.actor, algo.length)
    batch, returns = algo._batch(learner, rollout)

    def value(obs: Any) -> np.ndarray:
        net = algo._value.apply(learner.params.value, learner.moments.normalize(obs))
        return np.asarray(-3.0 + 2.0 * net[..., 0])

    v, v_next = value(rollout.obs), value(rollout.next_obs)
    assert rollout.truncated[4].all() and not rollout.terminated.any()
    expected = np.zeros((13, N))
    for t in reversed(range(12)):
        delta = np.asarray(rollout.reward[t]) + 0.99 * v_next[t] - v[t]
        expected[t] = delta + 0.99 * 0.95 * (t not in (4, 9)) * expected[t + 1]
    scale = np.sqrt(returns.var)
    np.testing.assert_allclose(batch.advantage * scale, expected[:12], rtol=1e-3, atol=1e-3)
    target = denormalize(returns, batch.target)
    np.testing.assert_allclose(target, expected[:12] + v, rtol=1e-3, atol=1e-3)


def test_nothing_has_moved_before_the_first_update() -> None:
    algo = small(epochs=1, minibatches=1)
    _, metrics = train(algo, 1)
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)


def test_the_learning_rate_falls_to_zero_over_the_budget() -> None:
    algo = small(env_steps=3 * N * 16)
    state, _ = train(algo, 3)
    np.testing.assert_allclose(state.learner.progress, 1.0, rtol=1e-6)
    after, _ = jax.jit(algo.step)(state)
    jax.tree.map(np.testing.assert_array_equal, after.learner.params, state.learner.params)
    steady = small(env_steps=3 * N * 16, anneal=False)
    after, _ = jax.jit(steady.step)(state)
    assert not np.allclose(after.learner.params.policy["params"]["layers_1"]["Dense_0"]["bias"],
                           state.learner.params.policy["params"]["layers_1"]["Dense_0"]["bias"])


def test_the_value_does_not_shrink_the_gradient_of_the_policy() -> None:
    algo = small()
    params = algo.init(KEY, N).learner.params
    ones = jax.tree.map(jnp.ones_like, params)
    loud = Params(ones.policy, jax.tree.map(lambda x: 1e6 * x, ones.value))
    (quiet, _), (beside, _) = (
        algo._optimizer.update(g, algo._optimizer.init(params)) for g in (ones, loud)
    )
    jax.tree.map(np.testing.assert_array_equal, quiet.policy, beside.policy)


def test_the_policy_is_greedy_unless_it_explores() -> None:
    algo = small()
    state, _ = train(algo, 2)
    obs = jnp.array([0.01, 0.2, -0.02, 0.1])
    keys = jax.random.split(KEY, 64)
    greedy, memory = jax.vmap(lambda k: algo.policy(state)(obs, None, k))(keys)
    explored, _ = jax.vmap(lambda k: algo.policy(state, explore=True)(obs, None, k))(keys)
    logits = algo._policy.apply(state.learner.params.policy, state.learner.moments.normalize(obs))
    assert memory is None
    assert (greedy == jnp.argmax(logits)).all()
    assert set(explored.tolist()) == {0, 1}


def test_continuous_actions_stay_in_bounds() -> None:
    algo = small(make("Pendulum-v1"))
    state, metrics = train(algo, 2)
    act = lambda *args: algo.act(state.learner.params.policy, state.learner.moments, *args)  # noqa: E731
    _, rollout = unroll(algo.env, act, state.actor, 16)
    assert jax.vmap(jax.vmap(algo.env.action_space.contains))(rollout.action).all()
    assert rollout.action.std() > 0.5
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


def test_it_says_which_actions_it_cannot_take() -> None:
    space = DictSpace({"push": Discrete(2)})
    with pytest.raises(ValueError, match=r"PPO cannot act in DictSpace.*flatten the action"):
        head_for(space, who="PPO")
    with pytest.raises(ValueError, match="Discrete, MultiDiscrete and Box with one axis"):
        head_for(Box(-1.0, 1.0, shape=(2, 2)), who="PPO")


def test_it_learns_catch() -> None:
    _, metrics = train(PPO(env=make("Catch"), env_steps=40 * N * 64), 40)
    ended, returns = (metrics[f"episode_{x}"][-5:].sum() for x in ("count", "return"))
    assert returns / ended > 0.5
