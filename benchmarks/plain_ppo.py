"""PPO on CartPole written by hand, in one file that imports nothing of hocket.

It has the mathematics and sizes of `hocket.algorithms.PPO` with `normalize_obs=False`, but none of
the abstraction: no fragments, no flax networks, no spaces, no protocols. Keys are split as hocket
splits them, so from one state both compute the same numbers. `benchmarks/fused.py` checks that, and
measures what the abstraction costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

LENGTH, EPOCHS, MINIBATCHES, HIDDEN = 128, 4, 4, 64
DISCOUNT, DECAY, CLIP, RATE = 0.99, 0.95, 0.2, 2.5e-4
ENTROPY_WEIGHT, VALUE_WEIGHT, MAX_NORM, BUDGET = 0.01, 0.5, 0.5, 500_000_000

optimizer = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.scale_by_adam(eps=1e-5))


class Envs(NamedTuple):
    x: tuple[Array, Array, Array, Array]  # [N] each
    steps: Array
    key: Array
    ret: Array
    length: Array
    ended_return: Array
    ended_length: Array
    ended: Array


class Returns(NamedTuple):
    mean: Array
    var: Array
    updates: Array


class State(NamedTuple):
    envs: Envs
    obs: Array
    key: Array
    params: Any
    optimizer: Any
    returns: Returns
    progress: Array
    pace: Array
    learner_key: Array


class Row(NamedTuple):
    obs: Array
    action: Array
    log_prob: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array


def init(key: Array, num_envs: int) -> State:
    k_params, k_reset, k_envs, k_act, k_learner = jax.random.split(key, 5)
    x = jax.vmap(_reset)(jax.random.split(k_reset, num_envs))
    real, whole = jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)
    keys = jax.random.split(k_envs, num_envs)
    envs = Envs(tuple(x.T), whole, keys, real, whole, real, whole, whole)
    params = {
        name: _init_layers(k, out, scale)
        for (name, out, scale), k in zip(
            [("policy", 2, 0.01), ("value", 1, 1.0)], jax.random.split(k_params), strict=True
        )
    }
    return State(
        envs, x, jax.random.split(k_act, num_envs), params, optimizer.init(params),
        Returns(jnp.zeros(()), jnp.ones(()), jnp.zeros(())), jnp.zeros(()),
        jnp.asarray(num_envs * LENGTH / BUDGET), k_learner,
    )  # fmt: skip


def step(state: State) -> tuple[State, dict[str, Array]]:
    zero = jnp.zeros_like(state.envs.ended)
    fresh = state.envs._replace(
        ended_return=jnp.zeros_like(state.envs.ended_return), ended_length=zero, ended=zero
    )

    def act_and_step(carry: tuple[Envs, Array, Array], _: None) -> Any:
        envs, obs, key = carry
        keys = jax.vmap(jax.random.split)(key)
        logits = _network(state.params["policy"], obs)
        action = jax.vmap(jax.random.categorical)(keys[:, 1], logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        envs, next_obs, reward, terminated, truncated = _step_envs(envs, action)
        row = Row(obs, action, log_prob, reward, terminated, truncated, next_obs)
        return (envs, jnp.stack(envs.x, 1), keys[:, 0]), row

    (envs, obs, key), rows = lax.scan(act_and_step, (fresh, state.obs, state.key), None, LENGTH)
    state, metrics = _update(state._replace(envs=envs, obs=obs, key=key), rows)
    return state, {
        "episode_return": envs.ended_return,
        "episode_length": envs.ended_length,
        "episode_count": envs.ended,
        **metrics,
    }


def _step_envs(envs: Envs, action: Array) -> tuple[Envs, Array, Array, Array, Array]:
    keys = jax.vmap(jax.random.split)(envs.key)
    position, velocity, angle, spin = envs.x
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
    spin_rate = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    x = (
        position + 0.02 * velocity,
        velocity + 0.02 * (push - 0.05 * spin_rate * cos / 1.1),
        angle + 0.02 * spin,
        spin + 0.02 * spin_rate,
    )
    terminated = (jnp.abs(x[0]) > 2.4) | (jnp.abs(x[2]) > 12 * 2 * jnp.pi / 360)
    steps = envs.steps + 1
    truncated = (steps >= 500) & ~terminated
    done, reward = terminated | truncated, jnp.ones_like(position)
    new = jax.vmap(_reset)(keys[:, 1])
    ret, length = envs.ret + reward, envs.length + 1
    envs = Envs(
        tuple(jnp.where(done, new[:, i], x[i]) for i in range(4)),
        jnp.where(done, 0, steps),
        keys[:, 0],
        jnp.where(done, 0, ret),
        jnp.where(done, 0, length),
        envs.ended_return + jnp.where(done, ret, 0),
        envs.ended_length + jnp.where(done, length, 0),
        envs.ended + done,
    )
    return envs, jnp.stack(x, 1), reward, terminated, truncated


def _update(state: State, rows: Row) -> tuple[State, dict[str, Array]]:
    spread = jnp.sqrt(state.returns.var)
    value, next_value = (
        state.returns.mean + spread * _network(state.params["value"], x)[..., 0]
        for x in (rows.obs, rows.next_obs)
    )
    advantage = _advantages(rows, value, next_value)
    target = advantage + value
    returns = _moments(state.returns, target)
    spread = jnp.sqrt(returns.var + 1e-8)
    scaled = jnp.clip((target - returns.mean) / spread, -10.0, 10.0)
    batch = (rows.obs, rows.action, rows.log_prob, advantage, scaled)
    rate = RATE * (1.0 - state.progress).clip(0.0)

    def one_minibatch(carry: tuple[Any, Any], minibatch: Any) -> Any:
        params, opt = carry
        gradients, metrics = jax.grad(_loss, has_aux=True)(params, *minibatch)
        updates, opt = optimizer.update(gradients, opt)
        return (jax.tree.map(lambda p, u: p - rate * u, params, updates), opt), metrics

    def one_epoch(carry: tuple[Any, Any], key: Array) -> Any:
        order = jax.random.permutation(key, LENGTH)
        shuffled = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[2:]), batch)
        return lax.scan(one_minibatch, carry, shuffled)

    key, k_epochs = jax.random.split(state.learner_key)
    (params, opt), metrics = lax.scan(
        one_epoch, (state.params, state.optimizer), jax.random.split(k_epochs, EPOCHS)
    )
    state = state._replace(
        params=params, optimizer=opt, returns=returns, progress=state.progress + state.pace,
        learner_key=key,
    )  # fmt: skip
    return state, jax.tree.map(jnp.mean, metrics)


def _loss(
    params: Any, obs: Array, action: Array, old: Array, advantage: Array, target: Array
) -> Any:
    logits = jax.nn.log_softmax(_network(params["policy"], obs))
    log_prob = jnp.take_along_axis(logits, action[..., None], -1)[..., 0]
    mean = advantage.mean()
    spread = jnp.sqrt(jnp.square(advantage - mean).mean())
    advantage = (advantage - mean) / (spread + 1e-8)
    log_ratio = log_prob - old
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    policy = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    value = 0.5 * jnp.square(_network(params["value"], obs)[..., 0] - target).mean()
    entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
    kl = (jnp.expm1(log_ratio) - log_ratio).mean()
    metrics = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "kl": kl}
    return policy + VALUE_WEIGHT * value - ENTROPY_WEIGHT * entropy, metrics


def _advantages(rows: Row, value: Array, next_value: Array) -> Array:
    delta = rows.reward + DISCOUNT * next_value * ~rows.terminated - value
    onward = DISCOUNT * DECAY * ~(rows.terminated | rows.truncated)

    def back(after: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        here = row[0] + row[1] * after
        return here, here

    return lax.scan(back, jnp.zeros_like(delta[0]), (delta, onward), reverse=True)[1]


def _moments(old: Returns, x: Array) -> Returns:
    mean, updates = x.mean(), old.updates + 1.0
    var = jnp.square(x - mean).mean()
    delta, weight = mean - old.mean, 1.0 / updates
    return Returns(
        old.mean + weight * delta,
        (1.0 - weight) * (old.var + weight * jnp.square(delta)) + weight * var,
        updates,
    )


def _network(layers: list[tuple[Array, Array]], x: Array) -> Array:
    for weights, bias in layers[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = layers[-1]
    return x @ weights + bias


def _init_layers(key: Array, out: int, scale: float) -> list[tuple[Array, Array]]:
    sizes, scales = [(4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, out)], [2**0.5, 2**0.5, scale]
    return [
        (jax.nn.initializers.orthogonal(s)(k, size), jnp.zeros(size[1]))
        for k, size, s in zip(jax.random.split(key, 3), sizes, scales, strict=True)
    ]


def _reset(key: Array) -> Array:
    return jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
