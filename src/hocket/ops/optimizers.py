"""Optimizers whose learning rate is the caller's: it may fall with the run, which is state."""

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
    """Adam's direction, of gradients clipped to a norm; `descend` takes the step.

    `b2` says how long it remembers the size of gradients, by which it divides them.

    Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization":
    https://arxiv.org/abs/1412.6980
    """
    clip = optax.clip_by_global_norm(max_norm)
    return optax.chain(clip, optax.scale_by_adam(b2=b2, eps=epsilon))


def calm_adam(max_norm: float, calm_norm: float, b2: float = 0.99) -> optax.GradientTransformation:
    """As `clipped_adam`, but its steps grow small with the gradients, below `calm_norm`.

    Adam divides gradients by their size, so that steps are as large where gradients are small and
    mostly noise. Its epsilon prevents that, and is here what each parameter's gradient is when all
    together have the norm `calm_norm`: one number means the same to small and large networks.
    """
    adam = optax.scale_by_adam(b2=b2)

    def calm(updates: Any, state: Any, params: Any = None) -> Any:
        size = sum(x.size for x in jax.tree.leaves(updates))
        of_size = optax.scale_by_adam(b2=b2, eps=calm_norm / math.sqrt(size))
        return of_size.update(updates, state, params)

    clip = optax.clip_by_global_norm(max_norm)
    return optax.chain(clip, optax.GradientTransformation(adam.init, calm))


def descend(params: Params, direction: Params, rate: float | Array) -> Params:
    """The parameters one step of size `rate` further down."""
    return jax.tree.map(lambda p, d: p - rate * d, params, direction)
