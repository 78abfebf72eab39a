"""Optimizers whose learning rate is the caller's: it may fall with the run, which is state."""

from __future__ import annotations

from typing import TypeVar

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


def descend(params: Params, direction: Params, rate: float | Array) -> Params:
    """The parameters one step of size `rate` further down."""
    return jax.tree.map(lambda p, d: p - rate * d, params, direction)
