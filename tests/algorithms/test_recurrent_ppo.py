"""Recurrent PPO: the learner remembers what the actor remembered, across every kind of end."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from hocket.algorithms.actor_critic import State, seen
from hocket.algorithms.ppo import PPO, RecurrentPPO
from hocket.envs import CartPole, Masked, Pendulum, TimeLimit
from hocket.envs.unroll import Rollout, unroll
from hocket.nn.layers import MLP
from hocket.ops import Moments
from hocket.testing import difference

KEY = jax.random.key(0)
N, T = 8, 24
POLE = Masked(TimeLimit(CartPole(), 12), keep=(0, 2))
SWING = Masked(TimeLimit(Pendulum(), 5), keep=(0, 1))


def small(env: Masked, **options: Any) -> RecurrentPPO:
    return RecurrentPPO(env=env, length=T, hidden=(16,), memory=12, **options)


@cache
def second_rollout(algo: PPO) -> tuple[State, Rollout]:
    """The state after one iteration, and a rollout from there, which begins amid episodes."""

    @jax.jit
    def run(key: Array) -> tuple[State, Rollout]:
        state, _ = algo.step(algo.init(key, N))
        act = partial(algo.act, state.learner.params, state.learner.moments)
        return state, unroll(algo.env, act, state.actor, T)[1]

    return run(KEY)


def test_a_memory_is_an_option_of_ppo() -> None:
    ppo = PPO(env=POLE, length=T, hidden=(16,), memory=12, minibatches=4, env_steps=1_000_000)
    assert difference(second_rollout(ppo)[0], second_rollout(small(POLE))[0]) == 0.0


@pytest.mark.parametrize(
    "options", [{"memory": 12, "policy_network": MLP((2,))}, {"encoder_network": MLP((2,))}]
)
def test_a_network_that_would_not_be_used_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="_network` of PPO is not used with memory="):
        PPO(env=POLE, **options)


def test_the_learner_finds_the_probabilities_of_the_actor() -> None:
    algo = small(POLE)
    (_, learner), rollout = second_rollout(algo)
    assert rollout.terminated.any() and rollout.truncated.any()
    assert jnp.abs(rollout.memory).max() > 0.0
    obs = seen(learner.moments, rollout.obs)
    memory = algo._agent.network.replay(learner.params, rollout.memory, obs, rollout.first)
    log_prob = algo._agent.read(learner.params, memory)[0].log_prob(rollout.extras["sample"])
    np.testing.assert_allclose(log_prob, rollout.extras["log_prob"], atol=1e-5)


def test_decoupled_is_the_same_where_no_sample_is_late() -> None:
    states = [second_rollout(small(POLE, decoupled=way))[0] for way in (False, True)]
    assert difference(*(state.learner.params for state in states)) <= 1e-5


def test_minibatches_pair_environments_with_their_own_memories() -> None:
    """With no learning, every minibatch of every epoch still finds the actor's probabilities."""
    algo = small(POLE, learning_rate=0.0)

    @jax.jit
    def run(key: Array) -> Any:
        return jax.lax.scan(lambda s, _: algo.step(s), algo.init(key, N), None, 2)[1]

    np.testing.assert_allclose(run(KEY)["kl"], 0.0, atol=1e-6)


def test_a_truncated_episode_bootstraps_with_its_own_memory() -> None:
    algo = small(SWING)
    (_, learner), rollout = second_rollout(algo)
    learner = learner._replace(returns=Moments(jnp.array(-3.0), jnp.array(4.0), jnp.ones(())))
    batch, returns = jax.jit(algo._batch)(learner, rollout)
    network, params = algo._agent.network, learner.params
    remember = jax.jit(partial(network.remember, params))

    def value(memory: Array) -> np.ndarray:
        return np.asarray(-3.0 + 2.0 * network.read(params, memory)[1][..., 0])

    memory, v, v_next = rollout.memory, np.zeros((T, N)), np.zeros((T, N))
    for t in range(T):
        obs, next_obs = (seen(learner.moments, x[t]) for x in (rollout.obs, rollout.next_obs))
        memory = remember(memory, obs)
        v[t], v_next[t] = value(memory), value(remember(memory, next_obs))
        memory = jnp.where(rollout.done[t][:, None], 0.0, memory)
    expected = np.zeros((T + 1, N))
    for t in reversed(range(T)):
        delta = np.asarray(rollout.reward[t]) + 0.99 * v_next[t] - v[t]
        expected[t] = delta + 0.99 * 0.95 * ~np.asarray(rollout.truncated[t]) * expected[t + 1]
    # Within an episode the bootstrap is the next step's own value; at its end it is not.
    ends = np.asarray(rollout.truncated[:-1])
    np.testing.assert_allclose(v_next[:-1][~ends], v[1:][~ends], atol=1e-5)
    assert not np.allclose(v_next[:-1][ends], v[1:][ends], atol=1e-3)
    target = returns.denormalize(batch.target)
    np.testing.assert_allclose(target, expected[:T] + v, rtol=1e-3, atol=1e-3)


def test_the_policy_remembers_and_is_greedy_unless_it_explores() -> None:
    algo = small(POLE)
    state, rollout = second_rollout(algo)
    params, past = state.learner.params, rollout.obs[:4, 0]
    policy = algo.policy(state)
    np.testing.assert_array_equal(policy.memory, np.zeros(12))

    memory, actions = policy.memory, []
    for obs in past:
        action, memory = policy(obs, memory, KEY)
        actions.append(action)
    start, first = jnp.zeros((1, 12)), jnp.zeros((4, 1), bool)
    obs = seen(state.learner.moments, past)[:, None]
    replayed = algo._agent.network.replay(params, start, obs, first)
    choices, _ = algo._agent.read(params, replayed)
    np.testing.assert_array_equal(jnp.stack(actions), choices.mode()[:, 0])

    explore = algo.policy(state, explore=True)
    keys = jax.random.split(KEY, 64)
    assert set(jax.vmap(lambda k: explore(past[0], None, k)[0])(keys).tolist()) == {0, 1}


def test_continuous_actions_stay_in_bounds() -> None:
    (_, learner), rollout = second_rollout(small(SWING))
    assert np.abs(rollout.action).max() <= 2.0 and rollout.action.std() > 0.5
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(learner.params))
