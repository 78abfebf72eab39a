"""A small algorithm for tests, with methods that a subclass can override to break the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hocket import Policy, averaged, fragment
from hocket.core.program.tuning import tuning


class ToyState(NamedTuple):
    x: Any  # [N, 4]
    keys: Any  # [N]
    w: Any  # [4]
    key: Any  # []


@dataclass(frozen=True)
class Toy:
    """Regression on points that move: `env` moves them, `act` predicts, `learn` fits."""

    length: int = 3
    env_steps: int = 1000
    num_envs: int = 8

    def init(self, key: Any, num_envs: int) -> ToyState:
        k_x, k_envs, k_learn = jax.random.split(key, 3)
        x = jax.random.normal(k_x, (num_envs, 4))
        return ToyState(x, jax.random.split(k_envs, num_envs), jnp.ones(4), k_learn)

    @fragment
    def env(self, x: Any, action: Any, keys: Any) -> Any:
        return 0.9 * x + 0.1 * jnp.tanh(action)[:, None] + 0.1 * self.noise(x, keys)

    def noise(self, x: Any, keys: Any) -> Any:
        return jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys)

    @fragment
    def act(self, w: Any, x: Any) -> Any:
        return x @ w

    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        key, k_noise = jax.random.split(key)
        gradient = averaged(jax.grad(self.loss)(w, xs))
        w = w - 0.1 * gradient + 0.01 * jax.random.normal(k_noise, w.shape)
        return w, key, averaged(self.loss(w, xs))

    def loss(self, w: Any, xs: Any) -> Any:
        return jnp.square(xs @ w - jnp.sin(xs).sum(-1)).mean()

    def step(self, state: ToyState) -> tuple[ToyState, dict[str, Any]]:
        def one(carry: tuple[Any, Any], _: None) -> Any:
            x, keys = carry
            keys = jax.vmap(jax.random.split)(keys)
            action = self.act(state.w, x)
            return (self.env(x, action, keys[:, 1]), keys[:, 0]), x

        start, unroll = (state.x, state.keys), tuning().unroll
        (x, keys), xs = lax.scan(one, start, None, self.length, unroll=unroll)
        w, key, loss = self.update(state.w, state.key, self.seen(xs))
        return ToyState(x, keys, w, key), {"loss": loss, "x": x.sum(-1)}

    def seen(self, xs: Any) -> Any:
        return xs

    def policy(self, state: ToyState, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (obs @ state.w, memory))
