"""Returns against rlax inside one episode, and against plain loops where episodes end."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from hocket.ops import gae, lambda_returns, n_step, take_steps, vtrace

T, N = 12, 4
DISCOUNT, DECAY = 0.9, 0.8


class Rollout:
    """Random numbers, consistent: within an episode `next_value[t]` is `value[t + 1]`."""

    def __init__(self, ends: bool) -> None:
        rng = np.random.default_rng(0)
        kind = rng.choice(3, size=(T, N), p=[0.6, 0.2, 0.2]) if ends else np.zeros((T, N), int)
        self.terminated, self.truncated = kind == 1, kind == 2
        if ends:
            self.terminated[5, 0] = self.truncated[5, 0] = True
            self.truncated[-1, 1], self.terminated[-1, 1] = True, False
            self.terminated[-1, 2], self.truncated[-1, 2] = True, False
        self.reward = rng.normal(size=(T, N)).astype(np.float32)
        self.value = rng.normal(size=(T, N)).astype(np.float32)
        self.log_ratio = rng.normal(size=(T, N)).astype(np.float32)
        final = rng.normal(size=(T, N)).astype(np.float32)
        after = np.concatenate([self.value[1:], final[-1:]])
        self.end = self.terminated | self.truncated
        self.next_value = np.where(self.end, final, after)

    def arrays(self, *names: str) -> list[jax.Array]:
        return [jnp.asarray(getattr(self, name)) for name in names]


def columns(fn: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """An unbatched function of [T], over every column of [T, N]."""
    return jax.vmap(fn, in_axes=1, out_axes=1)(*map(jnp.asarray, arrays))


ENDS = ("terminated", "truncated")


def test_gae_is_rlax_within_an_episode() -> None:
    r = Rollout(ends=False)
    advantage, target = gae(
        *r.arrays("reward", "value", "next_value", *ENDS), discount=DISCOUNT, decay=DECAY
    )
    values = np.concatenate([r.value, r.next_value[-1:]])
    expected = columns(
        lambda reward, v: rlax.truncated_generalized_advantage_estimation(
            reward, jnp.full(T, DISCOUNT), DECAY, v
        ),
        r.reward,
        values,
    )
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(target, expected + r.value, rtol=1e-5, atol=1e-5)


def test_gae_bootstraps_through_truncation_only() -> None:
    r = Rollout(ends=True)
    expected, trace = np.zeros((T, N)), np.zeros(N)
    for t in reversed(range(T)):
        bootstrap = np.where(r.terminated[t], 0, r.next_value[t])
        delta = r.reward[t] + DISCOUNT * bootstrap - r.value[t]
        trace = delta + DISCOUNT * DECAY * np.where(r.end[t], 0, trace)
        expected[t] = trace
    advantage, _ = gae(
        *r.arrays("reward", "value", "next_value", *ENDS), discount=DISCOUNT, decay=DECAY
    )
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)


def test_lambda_returns_are_rlax_within_an_episode() -> None:
    r = Rollout(ends=False)
    r.terminated[7] = True  # rlax knows termination, as a discount of 0
    returns = lambda_returns(
        *r.arrays("reward", "next_value", *ENDS), discount=DISCOUNT, decay=DECAY
    )
    expected = columns(
        lambda reward, discount, v: rlax.lambda_returns(reward, discount, v, DECAY),
        r.reward,
        DISCOUNT * ~r.terminated,
        r.next_value,
    )
    np.testing.assert_allclose(returns, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, DECAY, 1.0])
def test_lambda_returns_are_gae_plus_value(decay: float) -> None:
    r = Rollout(ends=True)
    _, target = gae(
        *r.arrays("reward", "value", "next_value", *ENDS), discount=DISCOUNT, decay=decay
    )
    returns = lambda_returns(
        *r.arrays("reward", "next_value", *ENDS), discount=DISCOUNT, decay=decay
    )
    np.testing.assert_allclose(returns, target, rtol=1e-5, atol=1e-5)


VTRACE = ("log_ratio", "reward", "value", "next_value", *ENDS)


def test_vtrace_is_rlax_where_nothing_is_truncated() -> None:
    r = Rollout(ends=False)
    r.terminated[4] = True
    targets, advantages = vtrace(*r.arrays(*VTRACE), discount=DISCOUNT, decay=DECAY)
    expected = columns(
        partial(rlax.vtrace_td_error_and_advantage, lambda_=DECAY),
        r.value,
        r.next_value,
        r.reward,
        DISCOUNT * ~r.terminated,
        np.exp(r.log_ratio),
    )
    np.testing.assert_allclose(targets, expected.errors + r.value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(advantages, expected.pg_advantage, rtol=1e-5, atol=1e-5)


def test_vtrace_bootstraps_through_truncation_only() -> None:
    r = Rollout(ends=True)
    clip_rho, clip_c, clip_pg_rho = 1.2, 0.9, 1.1
    ratio = np.exp(r.log_ratio)
    targets, advantages = np.zeros((T, N)), np.zeros((T, N))
    v_after, target_after = r.next_value[-1], r.next_value[-1]
    for t in reversed(range(T)):
        v_after = np.where(r.end[t], r.next_value[t], v_after)
        target_after = np.where(r.end[t], r.next_value[t], target_after)
        discount = DISCOUNT * ~r.terminated[t]
        delta = r.reward[t] + discount * v_after - r.value[t]
        trace = discount * DECAY * np.minimum(ratio[t], clip_c)
        mixed = DECAY * target_after + (1 - DECAY) * v_after
        q = r.reward[t] + discount * mixed
        advantages[t] = np.minimum(ratio[t], clip_pg_rho) * (q - r.value[t])
        targets[t] = r.value[t] + np.minimum(ratio[t], clip_rho) * delta
        targets[t] += trace * (target_after - v_after)
        v_after, target_after = r.value[t], targets[t]
    computed = vtrace(
        *r.arrays(*VTRACE),
        discount=DISCOUNT,
        decay=DECAY,
        clip_rho=clip_rho,
        clip_c=clip_c,
        clip_pg_rho=clip_pg_rho,
    )
    np.testing.assert_allclose(computed[0], targets, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(computed[1], advantages, rtol=1e-5, atol=1e-5)


def test_on_policy_vtrace_targets_are_lambda_returns() -> None:
    r = Rollout(ends=True)
    r.log_ratio[:] = 0.0
    targets, _ = vtrace(*r.arrays(*VTRACE), discount=DISCOUNT, decay=DECAY)
    expected = lambda_returns(
        *r.arrays("reward", "next_value", *ENDS), discount=DISCOUNT, decay=DECAY
    )
    np.testing.assert_allclose(targets, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3, T])
@pytest.mark.parametrize("trailing", [(), (N,), (2, 2)])
def test_n_step_stops_at_the_first_end(steps: int, trailing: tuple[int, ...]) -> None:
    r = Rollout(ends=True)
    shape = (T, *trailing)
    fold = (lambda x: x[:, 1]) if trailing == () else (lambda x: x.reshape(shape))
    run = jax.jit(partial(n_step, discount=DISCOUNT, steps=steps))
    window = run(*map(fold, r.arrays("reward", *ENDS)))
    starts = T - steps + 1
    for name, expected in zip(window._fields, n_step_by_loop(r, steps), strict=True):
        assert getattr(window, name).shape == (starts, *trailing)
        expected = expected[:, 1] if trailing == () else expected.reshape(starts, *trailing)
        np.testing.assert_allclose(getattr(window, name), expected, rtol=1e-5, atol=1e-6)


def n_step_by_loop(r: Rollout, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts = T - steps + 1
    reward, discount = np.zeros((starts, N)), np.zeros((starts, N))
    last = np.zeros((starts, N), int)
    for n in range(N):
        for t in range(starts):
            for k in range(steps):
                reward[t, n] += DISCOUNT**k * r.reward[t + k, n]
                discount[t, n] = DISCOUNT ** (k + 1) * (not r.terminated[t + k, n])
                last[t, n] = t + k
                if r.end[t + k, n]:
                    break
    return reward, discount, last


def test_take_steps_stays_within_an_environment() -> None:
    time = jnp.array([[0, 2, 1, 3], [3, 3, 0, 1]])
    tree = {
        "flat": jnp.arange(T * N).reshape(T, N),
        "deep": jnp.arange(T * N * 6).reshape(T, N, 2, 3),
    }
    taken = take_steps(tree, time)
    env = np.arange(N)
    for name, x in tree.items():
        np.testing.assert_array_equal(taken[name], np.asarray(x)[np.asarray(time), env])


@pytest.mark.parametrize("steps", [0, T + 1])
def test_n_step_refuses_a_window_longer_than_the_rollout(steps: int) -> None:
    r = Rollout(ends=True)
    with pytest.raises(ValueError, match=rf"{steps}-step returns of a rollout of {T} steps.*Use"):
        n_step(*r.arrays("reward", *ENDS), discount=DISCOUNT, steps=steps)
