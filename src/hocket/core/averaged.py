"""`averaged` declares that a value is a mean over this batch of environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

T = TypeVar("T")

averaged_p = Primitive("averaged")


@dataclass(frozen=True)
class ReplicaAxis:
    """The name of the mapped axis that holds replicas; with it, `averaged` becomes a mean.

    Replicas on several devices are mapped twice: over the devices of `mesh_axis`, and over the
    replicas of each device.
    """

    mesh_axis: str | None = None


def averaged(x: T) -> T:
    """Declare that `x` (a tree of arrays) is a mean over this batch of environments.

    In one program it is the identity. Where a place is replicated, each replica holds a share of
    the environments, and this is the mean over the replicas. It states a meaning, not a place:

        gradients = averaged(jax.grad(loss)(params, batch))
        mean = averaged(x.mean())
        variance = averaged(jnp.square(x - mean).mean())    # around the averaged mean
    """
    return jax.tree.map(_averaged_leaf, x)


def _averaged_leaf(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        raise TypeError(f"`averaged` takes means, which are floating point; found {leaf.dtype}.")
    return averaged_p.bind(leaf)


def _batch(axis: Any, args: tuple[Any], dims: tuple[Any]) -> tuple[Any, Any]:
    (x,), (dim,) = args, dims
    if not isinstance(axis.name, ReplicaAxis):
        return averaged_p.bind(x), dim
    mean = x if dim is None else jnp.mean(x, dim)
    return (lax.pmean(mean, axis.name.mesh_axis) if axis.name.mesh_axis else mean), None


averaged_p.def_impl(lambda x: x)
averaged_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(averaged_p, lambda _context, x: [x])
ad.deflinear2(averaged_p, lambda cotangent, _: [averaged(cotangent)])
batching.fancy_primitive_batchers[averaged_p] = _batch
