"""Optimizers that leave the learning rate to the caller, who may compute it from the state."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import jax
import optax
from jax import Array

Params = TypeVar("Params")


def clipped_adam(
    max_norm: float, epsilon: float = 1e-5, b2: float = 0.999
) -> optax.GradientTransformation:
    """Return Adam without a learning rate, for gradients clipped to a norm. Step with `descend`.

    Adam divides gradients by a running mean of their size; a larger `b2` averages over more steps.

    Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization":
    https://arxiv.org/abs/1412.6980
    """
    clip = optax.clip_by_global_norm(max_norm)
    return optax.chain(clip, optax.scale_by_adam(b2=b2, eps=epsilon))


def calm_adam(max_norm: float, calm_norm: float, b2: float = 0.99) -> optax.GradientTransformation:
    """Return a `clipped_adam` that takes smaller steps if the gradient's norm is below `calm_norm`.

    Adam divides gradients by their size, so steps stay large even where gradients are small and
    mostly noise. A large epsilon prevents that. Here epsilon is `calm_norm` divided by the square
    root of the number of parameters, so that the same `calm_norm` suits small and large networks.
    """
    adam = optax.scale_by_adam(b2=b2)

    def calm(updates: Any, state: Any, params: Any = None) -> Any:
        size = sum(x.size for x in jax.tree.leaves(updates))
        calmer = optax.scale_by_adam(b2=b2, eps=calm_norm / math.sqrt(size))
        return calmer.update(updates, state, params)

    clip = optax.clip_by_global_norm(max_norm)
    return optax.chain(clip, optax.GradientTransformation(adam.init, calm))


def descend(params: Params, direction: Params, rate: float | Array) -> Params:
    """Return `params - rate * direction`, leaf by leaf."""
    return jax.tree.map(lambda p, d: p - rate * d, params, direction)
