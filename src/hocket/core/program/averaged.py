"""`averaged`, which declares that a value is a mean over the environments of this program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

T = TypeVar("T")

averaged_p = Primitive("averaged")
averaged_p.multiple_results = True

Average = Callable[..., Sequence[Any]]
"""A function that takes one replica's arrays and returns the mean of each over the replicas."""

# These settings are in the key of every jax cache, so no program is reused under other settings.
_how = jax.make_user_context(None)
_alone = jax.make_user_context(False)


@dataclass(frozen=True)
class ReplicaAxis:
    """The name of a mapped axis of replicas. `averaged` computes the mean over this axis.

    Replicas on several devices are mapped twice: over the devices of `mesh_axis`, and over the
    replicas on each device.
    """

    mesh_axis: str | None = None


def averaged(x: T) -> T:
    """Declare that `x` (a tree of arrays) is a mean over the environments of this program.

    In one program it is the identity. On a replicated place each replica holds a share of the
    environments, and `averaged` is the mean over the replicas:

        gradients = averaged(jax.grad(loss)(params, batch))
        mean = averaged(x.mean())
        variance = averaged(jnp.square(x - mean).mean())    # around the averaged mean
    """
    leaves, tree = jax.tree.flatten(x)
    leaves = [_checked(leaf) for leaf in leaves]
    if _alone.value:
        return x
    return jax.tree.unflatten(tree, averaged_p.bind(*leaves) if leaves else [])


def averaging(how: Average) -> AbstractContextManager[Any]:
    """Inside this context, compile `averaged` as `how(*arrays)`.

    Each `averaged(tree)` becomes one call, with all arrays of the tree. Programs that JAX compiled
    outside, or with another `how`, are not reused here.
    """
    return _how(how)


def undivided() -> AbstractContextManager[Any]:
    """Inside this context, trace `averaged` as the identity, for a step without replicas."""
    return _alone(True)


def _checked(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        raise TypeError(f"`averaged` takes means, which are floating point; found {leaf.dtype}.")
    return leaf


def _run(*xs: Any) -> list[Any]:
    how: Average | None = _how.value
    return list(how(*xs)) if how else list(xs)


def _batch(axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
    if not isinstance(axis.name, ReplicaAxis):  # mapped over seeds, say, and not over replicas
        return averaged_p.bind(*args), dims
    means = [x if dim is None else jnp.mean(x, dim) for x, dim in zip(args, dims, strict=True)]
    if axis.name.mesh_axis:
        means = [lax.pmean(mean, axis.name.mesh_axis) for mean in means]
    return means, [None] * len(means)


def _transpose(cotangents: Sequence[Any], *args: Any) -> list[Any]:
    # A mean is linear and symmetric, so its transpose is the mean of the cotangents. A leaf without
    # a cotangent takes part as zeros, since all replicas must make the same call.
    means = averaged_p.bind(*[ad.instantiate_zeros(ct) for ct in cotangents])
    pairs = zip(args, means, strict=True)
    return [ct if ad.is_undefined_primal(x) else None for x, ct in pairs]


averaged_p.def_impl(_run)
averaged_p.def_abstract_eval(lambda *xs: xs)
# Not cacheable: two equations with the same shapes are two calls, and must not share one.
mlir.register_lowering(averaged_p, mlir.lower_fun(_run, multiple_results=True), cacheable=False)
ad.deflinear2(averaged_p, _transpose)
batching.fancy_primitive_batchers[averaged_p] = _batch
