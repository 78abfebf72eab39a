"""Recurrent PPO: the learner remembers what the actor remembered, across every kind of end."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.algorithms.ppo import denormalize
from hocket.algorithms.recurrent_ppo import RecurrentPPO
from hocket.envs import CartPole, Masked, Pendulum, TimeLimit, make
from hocket.envs.unroll import Rollout, unroll
from hocket.ops import Moments

KEY = jax.random.key(0)
N, T = 8, 32


def small(env: Any = None, **options: Any) -> RecurrentPPO:
    env = env or Masked(TimeLimit(CartPole(), 12), keep=(0, 2))
    return RecurrentPPO(env=env, length=T, hidden=(16,), memory=12, **options)


def second_rollout(algo: RecurrentPPO) -> tuple[Any, Rollout]:
    """A learner, and a rollout that begins amid episodes."""

    @jax.jit
    def run(key: Any) -> tuple[Any, Rollout]:
        state, _ = algo.step(algo.init(key, N))
        learner = state.learner
        act = lambda *args: algo.act(learner.params, learner.moments, *args)  # noqa: E731
        return learner, unroll(algo.env, act, state.actor, T)[1]

    return run(KEY)


def test_the_learner_finds_the_probabilities_of_the_actor() -> None:
    algo = small()
    learner, rollout = second_rollout(algo)
    assert rollout.terminated.any() and rollout.truncated.any()
    assert jnp.abs(rollout.memory).max() > 0.0
    obs = learner.moments.normalize(rollout.obs)
    memory = algo._network.replay(learner.params, rollout.memory, obs, rollout.first)
    log_prob = algo._read(learner.params, memory)[0].log_prob(rollout.extras["sample"])
    np.testing.assert_allclose(log_prob, rollout.extras["log_prob"], atol=1e-5)


def test_nothing_has_moved_before_the_first_update() -> None:
    algo = small(epochs=1, minibatches=1)
    _, metrics = jax.jit(algo.step)(algo.init(KEY, N))
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)


def test_minibatches_pair_environments_with_their_own_memories() -> None:
    """With no learning, every minibatch of every epoch still finds the actor's probabilities."""
    algo = small(learning_rate=0.0)
    state = algo.init(KEY, N)
    for _ in range(2):
        state, metrics = jax.jit(algo.step)(state)
        np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)


def test_a_truncated_episode_bootstraps_with_its_own_memory() -> None:
    algo = small(Masked(TimeLimit(Pendulum(), 5), keep=(0, 1)))
    learner, rollout = second_rollout(algo)
    learner = learner._replace(returns=Moments(jnp.array(-3.0), jnp.array(4.0), jnp.ones(())))
    batch, returns = algo._batch(learner, rollout)
    network, params = algo._network, learner.params

    def value(memory: Any) -> np.ndarray:
        return np.asarray(-3.0 + 2.0 * network.read(params, memory)[1][..., 0])

    memory, v, v_next = rollout.memory, np.zeros((T, N)), np.zeros((T, N))
    for t in range(T):
        obs, next_obs = (learner.moments.normalize(x[t]) for x in (rollout.obs, rollout.next_obs))
        memory = network.remember(params, memory, obs)
        v[t], v_next[t] = value(memory), value(network.remember(params, memory, next_obs))
        memory = jnp.where(rollout.done[t][:, None], 0.0, memory)
    expected = np.zeros((T + 1, N))
    for t in reversed(range(T)):
        delta = np.asarray(rollout.reward[t]) + 0.99 * v_next[t] - v[t]
        expected[t] = delta + 0.99 * 0.95 * ~np.asarray(rollout.truncated[t]) * expected[t + 1]
    # Within an episode the bootstrap is the next step's own value; at its end it is not.
    ends = np.asarray(rollout.truncated[:-1])
    np.testing.assert_allclose(v_next[:-1][~ends], v[1:][~ends], atol=1e-5)
    assert not np.allclose(v_next[:-1][ends], v[1:][ends], atol=1e-3)
    target = denormalize(returns, batch.target)
    np.testing.assert_allclose(target, expected[:T] + v, rtol=1e-3, atol=1e-3)


def test_the_policy_acts_as_in_training() -> None:
    algo = small()
    learner, rollout = second_rollout(algo)
    policy = algo.policy(_state(learner))
    memory, modes = policy.memory, []
    np.testing.assert_array_equal(memory, np.zeros(12))
    for t in range(4):
        action, memory = policy(rollout.obs[t, 0], memory, KEY)
        modes.append(action)
    obs = learner.moments.normalize(rollout.obs[:4, :1])
    start, first = jnp.zeros((1, 12)), jnp.zeros((4, 1), bool)
    choices, _ = algo._read(learner.params, algo._network.replay(learner.params, start, obs, first))
    np.testing.assert_array_equal(jnp.stack(modes), choices.mode()[:, 0])
    explore = algo.policy(_state(learner), explore=True)
    actions = jax.vmap(lambda k: explore(rollout.obs[0, 0], None, k)[0])(jax.random.split(KEY, 64))
    assert set(actions.tolist()) == {0, 1}


def test_continuous_actions_and_grids() -> None:
    for env in (make("Pendulum-v1"), make("Catch")):
        algo = small(env)
        learner, rollout = second_rollout(algo)
        assert jax.vmap(jax.vmap(env.action_space.contains))(rollout.action).all()
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(learner.params))


def _state(learner: Any) -> Any:
    from hocket.algorithms.ppo import State

    return State(actor=None, learner=learner)  # type: ignore[arg-type]
