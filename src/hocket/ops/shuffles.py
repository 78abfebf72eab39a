"""Shuffles into minibatches. The result does not depend on how environments are split up.

Replicas or devices that each have some of the environments must put the same steps into each
minibatch as one program that has them all. So environments are not mixed at random, and each
replica contributes equally many steps to every minibatch.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from hocket.ops.returns import take_steps

Tree = TypeVar("Tree")


def shuffle_time(key: Array, tree: Tree, minibatches: int) -> Tree:
    """Shuffle the steps of `[T, N, ...]`, in the same order for all environments.

    The result is `[M, T / M, N, ...]`.
    """
    length = _size(tree, axis=0)
    _check_divides(minibatches, length, "time steps", "the rollout (`length`)")
    order = jax.random.permutation(key, length)
    return jax.tree.map(lambda x: _cut_time(x[order], minibatches), tree)


def shuffle_time_each(keys: Array, tree: Tree, minibatches: int) -> Tree:
    """Shuffle the steps of `[T, N, ...]`. Each environment's order is drawn from its own key."""
    length = _size(tree, axis=0)
    _check_divides(minibatches, length, "time steps", "the rollout (`length`)")
    order = jax.vmap(lambda key: jax.random.permutation(key, length), out_axes=1)(keys)
    return jax.tree.map(lambda x: _cut_time(x, minibatches), take_steps(tree, order))


def shuffle_envs(key: Array, tree: Tree, minibatches: int, axis: int = 1) -> Tree:
    """Deal the N environments of `[T, N, ...]` into M minibatches: `[M, T, N / M, ...]`.

    The steps of an environment stay in order. Every minibatch takes one environment from each block
    of M neighbours, at the same position in all blocks. So the same environments always share a
    minibatch, and the key only decides the order of the minibatches. For a tree `[N, ...]`, such as
    memories, use `axis=0` and the same key.
    """
    num_envs = _size(tree, axis)
    _check_divides(minibatches, num_envs, "environments", "each replica (`num_envs` / replicas)")
    order = jax.random.permutation(key, minibatches)

    def deal(x: Array) -> Array:
        blocks = (num_envs // minibatches, minibatches)
        x = x.reshape(*x.shape[:axis], *blocks, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis + 1, 0)[order]

    return jax.tree.map(deal, tree)


def _size(tree: object, axis: int) -> int:
    return jax.tree.leaves(tree)[0].shape[axis]


def _cut_time(x: Array, minibatches: int) -> Array:
    return x.reshape(minibatches, x.shape[0] // minibatches, *x.shape[1:])


def _check_divides(minibatches: int, size: int, what: str, owner: str) -> None:
    if minibatches >= 1 and size % minibatches == 0:
        return
    fewer = max((m for m in range(1, minibatches) if size % m == 0), default=1)
    raise ValueError(
        f"cannot cut {size} {what} into {minibatches} minibatches of equal size. Use "
        f"`minibatches={fewer}`, or a multiple of {max(minibatches, 1)} {what} in {owner}."
    )
