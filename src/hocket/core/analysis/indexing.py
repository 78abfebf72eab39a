"""The rules of primitives that read or write at indices, such as gather and scatter.

An index is a position in one replica's array. It is safe along an axis that is the same on every
replica, and within the row of one environment. Any other use makes a local value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hocket.core.analysis.kinds import ZERO, Kind, Site, join, local, moved, nonlinear, summed


def _at_uniform(data: Sequence[Kind], index: Sequence[Kind], site: Site) -> Kind:
    """Return one kind for the arrays `data`, which are read or written at indices.

    The kind is local (possibly wrong) if the indices may differ between replicas.
    """
    for k in index:
        if k.tag == "per_env":
            return local(f"`{site.name}` at {site.where} indexes with per-environment numbers")
        if k.tag != "uniform" or k.degree:
            return nonlinear([k], site)
    return join(data, site)


def dynamic_slice(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of a slice of an array.

    It is local (possibly wrong) if the slice leaves out some environments.
    """
    k = _at_uniform(kinds[:1], kinds[1:], site)
    return moved(k, site, None if k.tag == "per_env" and site.resizes(k.axis) else k.axis)


def dynamic_update(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of an array after a slice of it was replaced.

    It is local (possibly wrong) if the slice has only some of the environments.
    """
    k = _at_uniform(kinds[:2], kinds[2:], site)
    part = k.tag == "per_env" and site.ins[0].shape[k.axis] != site.ins[1].shape[k.axis]
    return moved(k, site, None if part else k.axis)


def gather(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of a gather's result: what is read from an array at indices."""
    data, index = kinds
    d, sizes = site.params["dimension_numbers"], site.params["slice_sizes"]
    batch = [i for i in range(len(site.outs[0].shape)) if i not in d.offset_dims]
    taken = (*d.collapsed_slice_dims, *d.operand_batching_dims)
    window = [i for i in range(len(sizes)) if i not in taken]
    if index.tag in ("local", "partial") or index.degree:
        return nonlinear([index], site)
    if "per_env" not in (index.tag, data.tag):
        return data
    if data.tag == "uniform":  # one table for all environments, where each looks up its own rows
        return replace(index, axis=batch[index.axis], degree=data.degree, zero=False)
    if data.tag == "per_env" and data.axis in d.operand_batching_dims:
        # Each environment looks up in its own row, as under `vmap`.
        at = d.start_indices_batching_dims[d.operand_batching_dims.index(data.axis)]
        if index.tag == "uniform" or index.axis == at:
            both = [replace(data, axis=at), replace(index, degree=data.degree, zero=False)]
            return moved(join(both, site), site, batch[at])
    elif data.tag == "per_env" and index.tag == "uniform" and data.axis in window:
        # The same rows are read for each environment, if the window takes all environments.
        whole = site.ins[0].shape[data.axis] == sizes[data.axis]
        return moved(data, site, d.offset_dims[window.index(data.axis)] if whole else None)
    return moved(Kind("per_env"), site, None)


def scatter(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of a scatter's result: an array with updates written or added at indices."""
    data, index, update = kinds
    d = site.params["dimension_numbers"]
    if index.tag in ("local", "partial") or index.degree:
        return nonlinear([index], site)
    if all(k.tag != "per_env" for k in kinds) or "local" in (data.tag, update.tag):
        return join([data, update], site)
    taken = (*d.inserted_window_dims, *d.operand_batching_dims)
    window = [i for i in range(len(site.ins[0].shape)) if i not in taken]
    batch = [i for i in range(len(site.ins[2].shape)) if i not in d.update_window_dims]
    if data.tag == "per_env" and data.axis in d.operand_batching_dims:
        # Each environment writes into its own row, as under `vmap`.
        at = d.scatter_indices_batching_dims[d.operand_batching_dims.index(data.axis)]
        if index.axis in (at, -1) and update.axis in (batch[at], -1):
            rows = replace(index, axis=data.axis, degree=data.degree, zero=data.zero)
            return join([data, replace(update, axis=data.axis), rows], site)
    elif data.tag == "per_env" and index.tag == "uniform" and data.axis in window:
        # All environments are written at the same place.
        at = d.update_window_dims[window.index(data.axis)]
        if site.ins[2].shape[at] == site.ins[0].shape[data.axis] and update.axis in (at, -1):
            return join([data, replace(update, axis=data.axis)], site)
    elif data == ZERO and site.name in ("scatter-add", "scatter-sub") and update.axis in batch:
        # Rows of all environments are added up in a table of zeros, so the result is a sum over
        # environments and nothing else.
        return summed(replace(update, zero=False))
    return local(
        f"`{site.name}` at {site.where} writes per-environment values into one array for all"
    )


def scatter_product(kinds: Sequence[Kind], site: Site) -> Kind:
    """Return the kind of an array that a scatter multiplies by updates at indices."""
    data, _, update = kinds
    k = nonlinear([replace(data, axis=0, outer=0), replace(update, axis=0, outer=0)], site)
    return k if k.tag == "local" else scatter(kinds, site)
