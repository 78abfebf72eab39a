"""IMPALA: its loss, what it makes of old parameters, memories, images, and what it refuses."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from hocket.algorithms.a2c import A2C
from hocket.algorithms.actor_critic import State, policy_gradient_loss, seen
from hocket.algorithms.impala import IMPALA
from hocket.algorithms.ppo import PPO
from hocket.envs import Box, CartPole, Discrete, Env, Masked, Pendulum, Step, TimeLimit
from hocket.envs.unroll import Rollout, unroll
from hocket.ops import Moments

KEY = jax.random.key(0)
N, T = 8, 24
POLE = TimeLimit(CartPole(), 12)
HIDDEN = Masked(POLE, keep=(0, 2))
SWING = TimeLimit(Pendulum(), 5)


def small(env: Env, **options: Any) -> IMPALA:
    return IMPALA(env=env, length=T, hidden=(16,), env_steps=4 * N * T, **options)


@cache
def played(algo: IMPALA | A2C) -> tuple[State, Rollout, dict[str, Array]]:
    """The state after two iterations, the metrics of the second, and a rollout from there."""

    @jax.jit
    def run(key: Array) -> tuple[State, Rollout, dict[str, Array]]:
        state, _ = algo.step(algo.init(key, N))
        state, metrics = algo.step(state)
        act = partial(algo.act, state.learner.params, state.learner.moments)
        return state, unroll(algo.env, act, state.actor, T)[1], metrics

    return run(KEY)


def test_the_loss_is_that_of_the_paper() -> None:
    """The rollout is another policy's, with terminated and truncated episodes."""
    algo = small(POLE, decay=0.9)
    (_, learner), rollout, _ = played(algo)
    assert rollout.terminated.any() and rollout.truncated.any()
    old = rollout.extras["log_prob"] + 0.5 * jax.random.normal(KEY, (T, N))
    rollout = rollout._replace(extras={**rollout.extras, "log_prob": old})
    learner = learner._replace(returns=Moments(jnp.array(5.0), jnp.array(4.0), jnp.ones(())))
    loss_of = partial(
        policy_gradient_loss, algo._agent, learner, rollout, algo._estimate,
        value_weight=algo.value_weight, entropy_weight=algo.entropy_weight,
    )  # fmt: skip
    loss, (returns, metrics) = jax.jit(loss_of)(learner.params)

    def read(obs: Array) -> tuple[np.ndarray, np.ndarray]:
        network: Any = algo._agent.network
        params = learner.params
        logits, value = network.read(
            params, network.encoder.apply(params["encoder"], seen(learner.moments, obs))
        )
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.asarray(log_p), np.asarray(value[..., 0])

    (log_p, net), (_, net_next) = read(rollout.obs), read(rollout.next_obs)
    v, v_next = 5.0 + 2.0 * net, 5.0 + 2.0 * net_next
    log_prob = np.take_along_axis(log_p, np.asarray(rollout.action)[..., None], -1)[..., 0]
    ratio = np.minimum(np.exp(log_prob - old), 1.0)
    ended, going = np.asarray(rollout.done), 0.99 * ~np.asarray(rollout.terminated)
    # Remark 1 of the paper, backwards: v_s - V(x_s) = rho delta + gamma c (v_{s+1} - V(x_{s+1})).
    error, q = np.zeros((T + 1, N)), np.zeros((T, N))
    for t in reversed(range(T)):
        later = 0.9 * ~ended[t] * error[t + 1]
        q[t] = rollout.reward[t] + going[t] * (v_next[t] + later)
        delta = rollout.reward[t] + going[t] * v_next[t] - v[t]
        error[t] = ratio[t] * (delta + going[t] * later)
    target = v + error[:T]
    policy = -(log_prob * ratio * (q - v)).mean() / np.sqrt(returns.var)
    normal = (target - np.asarray(returns.mean)) / np.sqrt(returns.var)
    value_loss = 0.5 * np.square(net - normal).mean()
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    np.testing.assert_allclose(metrics["policy_loss"], policy, rtol=1e-3)
    np.testing.assert_allclose(metrics["value_loss"], value_loss, rtol=1e-3)
    np.testing.assert_allclose(loss, policy + value_loss - 0.001 * entropy, rtol=1e-3)
    np.testing.assert_allclose(metrics["ratio"], ratio.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["clipped"], (ratio == 1.0).mean(), rtol=1e-4)


def test_with_the_actor_s_own_parameters_it_is_a2c() -> None:
    impala = small(POLE, learning_rate=1e-3)
    a2c = A2C(env=POLE, length=T, hidden=(16,), env_steps=4 * N * T, learning_rate=1e-3, decay=1.0)
    (_, one), _, metrics = played(impala)
    np.testing.assert_allclose(metrics["ratio"], 1.0, atol=1e-5)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4),
        one.params, played(a2c)[0].learner.params,
    )  # fmt: skip


def test_the_learner_finds_the_probabilities_of_an_actor_with_a_memory() -> None:
    algo = small(HIDDEN, memory=12)
    (_, learner), rollout, _ = played(algo)
    assert rollout.terminated.any() and rollout.truncated.any()
    assert jnp.abs(rollout.memory).max() > 0.0
    choices, value, next_value = algo._agent.replay(learner.params, learner.moments, rollout)
    log_prob = choices.log_prob(rollout.extras["sample"])
    np.testing.assert_allclose(log_prob, rollout.extras["log_prob"], atol=1e-5)
    # Within an episode the value of where a step led is the next step's own; at its end it is not.
    done = np.asarray(rollout.done[:-1])
    np.testing.assert_allclose(next_value[:-1][~done], value[1:][~done], atol=1e-5)
    assert not np.allclose(next_value[:-1][done], value[1:][done], atol=1e-3)


@pytest.mark.parametrize("memory", [0, 12])
def test_the_policy_is_greedy_unless_it_explores(memory: int) -> None:
    algo = small(HIDDEN if memory else POLE, memory=memory)
    state, rollout, _ = played(algo)
    obs, keys = rollout.obs[0, 0], jax.random.split(KEY, 64)
    greedy, explore = algo.policy(state), algo.policy(state, explore=True)
    kept = greedy(obs, greedy.memory, KEY)[1]
    assert (kept is None) if not memory else (kept.shape == (memory,))
    actions = [jax.vmap(lambda k, p=p: p(obs, p.memory, k)[0])(keys) for p in (greedy, explore)]
    assert len(set(actions[0].tolist())) == 1 and set(actions[1].tolist()) == {0, 1}


def test_continuous_actions_stay_in_bounds() -> None:
    (_, learner), rollout, metrics = played(small(SWING))
    assert np.abs(rollout.action).max() <= 2.0 and rollout.action.std() > 0.5
    assert np.isfinite(metrics["policy_loss"])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(learner.params))


class Film:
    """Bytes to look at, for ever."""

    observation_space = Box(0, 255, shape=(84, 84, 4), dtype="uint8")
    action_space = Discrete(2)

    def reset(self, key: Array) -> tuple[Array, Array]:
        return key, self.observation_space.sample(key)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Step]:
        no = jnp.zeros((), bool)
        return key, Step(self.observation_space.sample(key), jnp.ones(()), no, no)


@pytest.mark.parametrize("make", [PPO, IMPALA])
def test_images_of_bytes_are_not_normalized(make: Any) -> None:
    """Their moments would be sent to every actor, and the network scales bytes by itself."""
    algo = make(env=Film(), length=8)
    state = jax.eval_shape(partial(algo.init, num_envs=2), KEY)
    assert state.learner.moments is None
    obs = Film().observation_space.sample(KEY)
    assert seen(None, obs).dtype == jnp.uint8
    _, metrics = jax.eval_shape(algo.step, state)
    assert metrics["policy_loss"].shape == ()


@pytest.mark.parametrize("wanted", [True, False])
def test_observations_are_normalized_where_that_is_wanted(wanted: bool) -> None:
    algo = small(POLE, normalize_obs=wanted)
    state = jax.eval_shape(partial(algo.init, num_envs=2), KEY)
    assert (state.learner.moments is not None) is wanted


def test_it_says_which_actions_it_cannot_take() -> None:
    class Odd(Film):
        action_space = Box(-1.0, 1.0, shape=(2, 2))

    with pytest.raises(ValueError, match=r"IMPALA cannot act in Box.*flatten the action"):
        IMPALA(env=Odd()).init(KEY, N)
