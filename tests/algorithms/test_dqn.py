"""DQN: which transitions it makes, when it learns, and that it does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.algorithms.dqn import DQN, State
from hocket.core.graph.trace import trace
from hocket.envs.registry import make
from hocket.envs.unroll import Rollout
from hocket.replay.device import Draw
from hocket.replay.transitions import Transition, init_tail

T, N, DISCOUNT = 5, 3, 0.9


def small(**changes: Any) -> DQN:
    algo = DQN(
        env=make("Catch"),
        length=4,
        updates=2,
        batch_size=16,
        capacity=256,
        min_size=32,
        hidden=(16,),
    )
    return replace(algo, **changes)


def random_rollouts(num: int) -> list[Rollout]:
    """Rollouts whose observations are numbers that nothing else has, with ends of both kinds."""
    rng = np.random.default_rng(0)
    obs = np.arange(num * T * N, dtype=np.float32).reshape(num, T, N)
    kind = rng.choice(3, size=(num, T, N), p=[0.7, 0.15, 0.15])
    kind[0, -1] = [0, 1, 2]  # at a boundary: goes on, terminated, truncated
    kind[1, 0] = [1, 0, 0]  # just after one
    parts = (obs, obs.astype(np.int32), rng.normal(size=obs.shape), kind == 1, kind == 2, obs + 0.5)
    return [
        Rollout(*(jnp.asarray(part[i]) for part in parts), extras=None, memory=None, episodes={})
        for i in range(num)
    ]


def expected(rollouts: list[Rollout], steps: int) -> dict[float, tuple[float, float, float]]:
    """By the observation it starts from: reward, discount and next observation of each window."""
    windows = {}
    obs, reward, terminated, truncated, next_obs = (
        np.concatenate([np.asarray(getattr(r, name), np.float64) for r in rollouts])
        for name in ("obs", "reward", "terminated", "truncated", "next_obs")
    )
    for env in range(N):
        for start in range(len(obs) - steps + 1):
            total, discount, t = 0.0, 1.0, start
            for t in range(start, start + steps):
                total += discount * reward[t, env]
                discount *= DISCOUNT * (1.0 - terminated[t, env])
                if terminated[t, env] or truncated[t, env]:
                    break
            windows[obs[start, env]] = (total, discount, next_obs[t, env])
    return windows


@pytest.mark.parametrize("steps", [1, 3, T + 3])
def test_every_n_step_transition_is_made_once_across_rollouts(steps: int) -> None:
    algo = small(steps=steps, discount=DISCOUNT)
    rollouts, made = random_rollouts(6), {}
    tail = init_tail(jnp.zeros(()), jnp.zeros((), jnp.int32), N, steps=steps)
    assemble = jax.jit(algo.assemble)
    for rollout in rollouts:
        tail, made_now, is_real = assemble(tail, rollout)
        assert is_real.shape == (T, N)
        row: Transition = jax.tree.map(lambda x: np.asarray(x)[np.asarray(is_real)], made_now)  # noqa: B023
        np.testing.assert_array_equal(row.obs, row.action)
        for obs, *values in zip(row.obs, row.reward, row.discount, row.next_obs, strict=True):
            assert obs not in made
            made[obs] = values
    want = expected(rollouts, steps)
    assert made.keys() == want.keys()
    for obs, values in want.items():
        np.testing.assert_allclose(made[obs], values, rtol=1e-5, atol=1e-6)


def test_the_loss_is_weighted_by_importance() -> None:
    """As in Schaul et al. 2016: (N p)^-beta, divided by the largest of the batch."""
    algo, rng, num, size = small(beta=0.7), np.random.default_rng(0), 8, 1_000
    params = algo.init(jax.random.key(0), 2).learner.params
    shape = jax.tree.leaves(algo.env.observation_space.spec())[0].shape
    obs = rng.normal(size=(2, num, *shape))
    rows = Transition(
        obs=jnp.asarray(obs[0], jnp.float32), action=jnp.asarray(rng.integers(3, size=num)),
        reward=jnp.asarray(rng.normal(size=num) * 2, jnp.float32), discount=jnp.full(num, 0.9),
        next_obs=jnp.asarray(obs[1], jnp.float32),
    )  # fmt: skip
    p = rng.exponential(size=num) / size
    batch = Draw(rows, jnp.asarray(p, jnp.float32), jnp.asarray(True))
    loss, (error, _) = algo._loss(params, params, batch)
    weight, error = (size * p) ** -0.7, np.abs(np.asarray(error, np.float64))
    losses = np.where(error < 1.0, error**2 / 2, error - 0.5)
    assert error.max() > 1.0 > error.min()
    np.testing.assert_allclose(loss, (weight / weight.max() * losses).mean(), rtol=1e-5)
    assert abs(losses.mean() - loss) > 0.01 * losses.mean()  # weights that matter


def leaves_differ(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in pairs)


@pytest.fixture(scope="module")
def history() -> list[tuple[State, Any]]:
    """The states and metrics of a short run; 32 rows are there from the fifth step on."""
    algo = small(steps=3)
    step, state = jax.jit(algo.step), jax.jit(algo.init, static_argnums=1)(jax.random.key(0), 2)
    states: list[tuple[State, Any]] = [(state, None)]
    for _ in range(6):
        states.append(step(states[-1][0]))
    return states


def test_nothing_is_learned_before_warm_up(history: list[tuple[State, Any]]) -> None:
    sizes = [int(state.replay.size) for state, _ in history]
    assert sizes == [0, 4, 12, 20, 28, 36, 44]  # the first n - 1 steps wait for theirs
    parts = [(s.learner.params, s.learner.target, s.learner.optimizer) for s, _ in history]
    changed = [leaves_differ(a, b) for a, b in pairwise(parts)]
    assert changed == [size >= 32 for size in sizes[1:]]


def test_priorities_change_with_the_first_update(history: list[tuple[State, Any]]) -> None:
    for state, _ in history:
        size = int(state.replay.size)
        priorities = np.asarray(state.replay.tree[256 : 256 + size])
        assert (priorities != 1.0).any() == (size >= 32)
        assert (priorities > 0.0).all()


def test_metrics_are_finite_numbers(history: list[tuple[State, Any]]) -> None:
    metrics = history[-1][1]
    assert metrics.keys() >= {"loss", "q", "td_error", "epsilon", "bad_priorities", "stale_keys"}
    assert all(np.isfinite(value).all() for value in metrics.values())
    assert metrics["bad_priorities"] == 0 and metrics["stale_keys"] == 0
    for name in ("loss", "q", "epsilon"):
        assert metrics[name].shape == ()


def test_exploration_falls_over_its_part_of_the_budget() -> None:
    algo = small(env_steps=80, exploration=0.5, epsilon=(1.0, 0.2))
    state = algo.init(jax.random.key(0), 2)  # 8 of the 80 steps in an iteration
    step, epsilons = jax.jit(algo.step), []
    for _ in range(7):
        state, metrics = step(state)
        epsilons.append(float(metrics["epsilon"]))
    np.testing.assert_allclose(epsilons, [1.0, 0.84, 0.68, 0.52, 0.36, 0.2, 0.2], atol=1e-5)


def test_the_fragments_have_their_roles() -> None:
    graph = trace(small(), num_envs=4)
    roles = {label.name: label.role for label in graph.labels}
    replay = dict.fromkeys(("insert", "sample", "reprioritize"), "replay")
    assert roles == {"env": "env", "act": "act", "assemble": "act", "update": "learn", **replay}
    assert graph.at(8).num_envs == 8  # the same program with other sizes


def test_learns_catch() -> None:
    algo = DQN(env=make("Catch"), env_steps=30_000, hidden=(64, 64), updates=4, batch_size=64)

    def train(key: jax.Array) -> Any:
        return jax.lax.scan(lambda s, _: algo.step(s), algo.init(key, 16), None, 230)[1]

    metrics = jax.jit(train)(jax.random.key(0))
    late = jax.tree.map(lambda x: x[-50:].sum(), metrics)
    assert late["episode_return"] / late["episode_count"] > 0.8


def test_an_action_that_is_not_discrete_is_refused() -> None:
    with pytest.raises(ValueError, match="one discrete action"):
        DQN(env=make("Pendulum-v1")).init(jax.random.key(0), 2)
