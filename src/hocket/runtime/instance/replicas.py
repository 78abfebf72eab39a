"""Replicas that average values among themselves with `averaged`, run as one program.

Per-environment values are stacked, `[replicas, ...]`, with each replica's share in its own row.
Uniform values are held once. `vmap` maps a program over the rows under an axis name, over which
`averaged` computes its mean. On several devices `shard_map` gives each device its rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.core.program.averaged import ReplicaAxis
from hocket.runtime.channels.joins import Join


def split_axis(x: jax.Array, axis: int, replicas: int) -> jax.Array:
    """Split a value along an axis into equal shares, stacked as `[replicas, ...]`."""
    shape = (*x.shape[:axis], replicas, x.shape[axis] // replicas, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def merge_axis(x: jax.Array, axis: int) -> jax.Array:
    """Undo `split_axis`: concatenate the shares along the axis."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def cut_parts(x: Any, axis: int | None, parts: int, blocks: int) -> Sequence[Any]:
    """Cut a value into parts along its environment axis, which consists of `blocks` equal blocks.

    Each part gets an equal share of every block. All places cut the same blocks, so part k has the
    same environments in all of them. A block is the share of one replica at the place with
    the most replicas, so at other places a replica may have several blocks.
    """
    if axis is None:
        return [x] * parts
    by_block = split_axis(x, axis, blocks)  # [blocks, ...]
    by_part = split_axis(by_block, axis + 1, parts)  # [parts, blocks, ...]
    return [merge_axis(part, axis) for part in by_part]


def join_parts(parts: Sequence[Any], axis: int | None, blocks: int) -> Any:
    """Undo `cut_parts`: put the parts together again."""
    if axis is None:
        return parts[0]
    by_part = jnp.stack([split_axis(x, axis, blocks) for x in parts])
    return merge_axis(merge_axis(by_part, axis + 1), axis)


def stack(plan: Plan, place: str, state: Any) -> Any:
    """Split each per-environment leaf of a whole state by replica, as `[replicas, ...]`."""
    replicas = plan.place(place).replicas
    return _by_leaf(plan, state, lambda x, axis: split_axis(x, axis, replicas))


def unstack(plan: Plan, state: Any) -> Any:
    """Undo `stack`: return the whole state, as the fused program has it."""
    return _by_leaf(plan, state, merge_axis)


def _by_leaf(plan: Plan, state: Any, change: Callable[[Any, int], Any]) -> Any:
    leaves, tree = jax.tree.flatten(state)
    for i, value in enumerate(plan.graph.block.inputs):
        axis = plan.axes.axis(value)
        if axis is not None:
            leaves[i] = change(leaves[i], axis)
    return jax.tree.unflatten(tree, leaves)


def without_aliases(values: dict[ValueId, Any]) -> dict[ValueId, Any]:
    """Copy each array that occurs again, because an array can be donated only once."""
    seen: set[int] = set()
    for v, x in values.items():
        if id(x) in seen:
            values[v] = jnp.copy(x)
        seen.add(id(x))
    return values


def join_values(parts: Sequence[Sequence[Any]], joins: Sequence[Join], device: Any) -> list[Any]:
    """Join the parts of each value on `device`. A value with a single part is returned as it is."""
    whole = [of_value[0] for of_value in parts]
    if many := [k for k, of_value in enumerate(parts) if len(of_value) > 1]:
        # Join on one device, because a part may have too few environments to be split over several.
        on_device = jax.device_put([parts[k] for k in many], device)
        for k, x in zip(many, joined(on_device, tuple(joins[k] for k in many)), strict=True):
            whole[k] = x
    return whole


@functools.partial(jax.jit, static_argnums=1)
def joined(parts: list[list[Any]], joins: tuple[Join, ...]) -> list[Any]:
    """Join the parts of all values, in one compiled program."""
    return [join(of_value) for of_value, join in zip(parts, joins, strict=True)]


@jax.jit
def _stacked(rows: list[list[Any]], axes: Any) -> list[Any]:
    return [jnp.stack(made, axis.ndim) for made, axis in zip(rows, axes, strict=True)]


def stack_rows(rows: list[list[Any]], axes: tuple[int, ...]) -> list[Any]:
    """Stack each list of rows into one array: JAX rows on the device, numpy rows on the host.

    One program stacks all lists of JAX rows, because one call per list takes 3x as long.
    """
    there = [k for k, made in enumerate(rows) if isinstance(made[0], jax.Array)]
    # Each axis is passed as the rank of a dummy array: a rank is static, but a number is traced.
    stacked = _stacked([rows[k] for k in there], [np.zeros((1,) * axes[k]) for k in there])
    on_device = dict(zip(there, stacked, strict=True))
    return [
        on_device[k] if k in on_device else np.stack(made, axes[k]) for k, made in enumerate(rows)
    ]


def replica_mesh(devices: Sequence[Any], replicas: int) -> Mesh:
    """Return the mesh of a place's devices. If each replica has several, the mesh has two axes."""
    auto = AxisType.Auto
    if replicas == 1 or len(devices) <= replicas:
        return Mesh(np.array(devices), ("devices",), axis_types=(auto,))
    grid = np.array(devices).reshape(replicas, -1)
    return Mesh(grid, ("devices", "shards"), axis_types=(auto, auto))


@functools.cache
def home(mesh: Mesh, axis: int | None, *, stacked: bool) -> NamedSharding:
    """Return a value's sharding: split over devices by environments, or copied if it has none."""
    if axis is None or mesh.size == 1:
        return NamedSharding(mesh, PartitionSpec())
    if not stacked:
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, "devices"))
    if "shards" not in mesh.axis_names:
        return NamedSharding(mesh, PartitionSpec("devices"))
    return NamedSharding(mesh, PartitionSpec("devices", *[None] * axis, "shards"))


def map_program(
    fn: Callable[..., Sequence[Any]],
    ins: Sequence[bool],
    outs: Sequence[bool],
    mesh: Mesh,
    replicas: int,
) -> Callable[..., Sequence[Any]]:
    """Map the program of one replica over rows, which are the first axis of stacked values.

    `ins` and `outs` say, by position, which arguments and results have rows. All rows share the
    arguments and results without rows.
    """
    axes_in = tuple(0 if rows else None for rows in ins)
    axes_out = [0 if rows else None for rows in outs]
    axis = ReplicaAxis() if mesh.size == 1 else ReplicaAxis("devices")
    rows = replicas // mesh.size
    mapped = jax.vmap(fn, axes_in, axes_out, axis_name=axis, axis_size=rows)
    if mesh.size == 1:
        return mapped
    by_row = {True: PartitionSpec("devices"), False: PartitionSpec()}
    return jax.shard_map(
        mapped, mesh=mesh, check_vma=False, axis_names={"devices"},
        in_specs=tuple(by_row[rows] for rows in ins), out_specs=[by_row[rows] for rows in outs],
    )  # fmt: skip


def map_replicas(plan: Plan, mesh: Mesh) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    """Return the step of a plan with a single, replicated place. The step takes a stacked state."""
    graph = plan.graph
    algorithm, tree = graph.algorithm, jax.tree.structure(graph.state)
    ins = [plan.axes.axis(v) is not None for v in graph.block.inputs]
    out_axes = [plan.axes.axis(v) for v in graph.block.outputs[graph.num_leaves :]]

    def one(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(algorithm.step(jax.tree.unflatten(tree, leaves)))

    def step(state: Any) -> tuple[Any, dict[str, Any]]:
        outs = [*ins, *(axis is not None for axis in out_axes)]
        leaves = list(
            map_program(one, ins, outs, mesh, plan.places[0].replicas)(*jax.tree.leaves(state))
        )
        rows = [
            x if axis is None else merge_axis(x, axis)
            for x, axis in zip(leaves[graph.num_leaves :], out_axes, strict=True)
        ]
        metrics = jax.tree.unflatten(jax.tree.structure(graph.metrics), rows)
        return jax.tree.unflatten(tree, leaves[: graph.num_leaves]), metrics

    return step
