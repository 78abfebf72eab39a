"""Checkpoints of the whole state: written while training goes on, whole or not at all.

Each carries a fingerprint of every array, so that one that was damaged is refused by name and the
one before it is used.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.program.contract import leaf_names
from hocket.runtime.channels.host_arrays import is_key, with_impl
from hocket.system.text import bytes_text

UNFINISHED = ".orbax-checkpoint-tmp"


LATE = "late/"
"""What begins the names of arrays that are not of the state, and were on their way to someone."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says which and what to do."""


class Misfit(ValueError):
    """A checkpoint of another algorithm, or of this one before it was changed."""


@dataclass(frozen=True)
class Checkpoint:
    """A state as it was saved, and what was refused on the way to it."""

    iteration: int
    state: Any
    about: dict[str, Any]
    """What was saved beside the state."""
    late: dict[str, Any]
    """What was on its way in late channels, random keys as the numbers they are."""
    refused: tuple[str, ...] = field(default=())
    """Why later checkpoints were not used, in sentences."""


class Checkpoints:
    """The checkpoints of one run: the last `keep` and the best.

    checkpoints.save(iteration, state, score=return_mean)    # returns while it is being written
    checkpoints.latest(specs).state
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self._keep = folder.absolute(), keep
        self._writing: int | None = None

    @functools.cached_property
    def _manager(self) -> Any:
        return _manager(self.folder, self._keep)  # when it is needed: the import takes a second

    def save(
        self,
        iteration: int,
        state: Any,
        *,
        score: float,
        about: dict[str, Any] | None = None,
        late: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin to write a checkpoint; waits for the one before it. A nan is the worst score.

        `late` is what was on its way in late channels, if there are any.
        """
        import orbax.checkpoint as ocp

        self.wait()
        if iteration in self._manager.all_steps():
            return
        more = {LATE + name: x for name, x in _arrays(dict(late or {})).items()}
        arrays = _together({**_arrays(state), **more})
        self._writing = iteration
        self._guard(lambda: _check_room(self.folder, arrays))
        marks = {name: int(mark) for name, mark in _marks(arrays).items()}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays),
            about=ocp.args.JsonSave(
                {"fingerprint": marks, "shapes": _shapes(arrays), **(about or {})}
            ),
        )
        score = -np.inf if np.isnan(score) else float(score)
        self._guard(lambda: self._manager.save(iteration, args=items, metrics={"score": score}))

    def wait(self) -> None:
        """Until everything is written; says what could not be."""
        self._guard(self._manager.wait_until_finished)
        self._writing = None

    def iterations(self) -> list[int]:
        """Those that are there, whole or not."""
        return sorted(self._manager.all_steps())

    def half_written(self) -> list[str]:
        """A sentence for each that a kill or a crash interrupted."""
        names = (path.name for path in sorted(self.folder.glob(f"*{UNFINISHED}")))
        return [f"checkpoint {name.removesuffix(UNFINISHED)} is half-written" for name in names]

    def best(self, specs: Any) -> Checkpoint:
        """The one with the best score, or if it is damaged the latest."""
        best, others = self._manager.best_step(), self.iterations()[::-1]
        return self._first_whole([best, *others] if best is not None else others, specs)

    def latest(self, specs: Any) -> Checkpoint:
        """The last one that is whole. `specs` is the state's structure, shapes and dtypes."""
        return self._first_whole(self.iterations()[::-1], specs, self.half_written())

    def at(self, iteration: int, specs: Any) -> Checkpoint:
        """The one after so many iterations."""
        if iteration not in self.iterations():
            there = ", ".join(map(str, self.iterations())) or "none"
            raise CheckpointError(
                f"there is no checkpoint {iteration} in {self.folder}; there: {there}."
            )
        return self._first_whole([iteration], specs)

    def refuse_after(self, iteration: int) -> None:
        """Move the later ones, damaged or half-written, to `refused`: they will be written anew."""
        later = [self.folder / str(i) for i in self.iterations() if i > iteration]
        for path in [*later, *self.folder.glob(f"*{UNFINISHED}")]:
            refused = self.folder.parent / "refused" / path.name
            shutil.rmtree(refused, ignore_errors=True)
            refused.parent.mkdir(exist_ok=True)
            shutil.move(path, refused)
        self._manager.reload()

    def close(self) -> None:
        """Wait, and let go of the folder."""
        if "_manager" in vars(self):
            try:
                self.wait()
            finally:
                self._manager.close()

    def _first_whole(
        self, iterations: Sequence[int], specs: Any, refused: Sequence[str] = ()
    ) -> Checkpoint:
        refused = list(refused)
        for iteration in iterations:
            try:
                state, late, about = self._read(iteration, specs)
            except CheckpointError as error:
                refused.append(str(error))
            else:
                return Checkpoint(iteration, state, about, late, tuple(refused))
        why = "; ".join(refused) or "none was written"
        raise CheckpointError(f"no whole checkpoint in {self.folder}: {why}.")

    def _read(self, iteration: int, specs: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        import orbax.checkpoint as ocp

        home = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        try:
            about = self._items(iteration, about=ocp.args.JsonRestore()).about
            shapes = about.pop("shapes")
            more = {name: _spec(text) for name, text in shapes.items() if name.startswith(LATE)}
            wanted = {**jax.eval_shape(_arrays, specs), **more}
            self._check_fits(iteration, shapes, wanted)
            wanted = {
                name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=home)
                for name, x in wanted.items()
            }
            arrays = self._items(iteration, state=ocp.args.StandardRestore(wanted)).state
        except (Misfit, PermissionError):
            raise
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise CheckpointError(
                f"checkpoint {iteration} is damaged ({_reason(error)[:200]})"
            ) from error
        marks = _marks(arrays)
        for name, mark in about.pop("fingerprint").items():
            if marks[name] != mark:
                raise CheckpointError(f"checkpoint {iteration} is damaged (`{name}` has changed)")
        late = {name.removeprefix(LATE): x for name, x in arrays.items() if name.startswith(LATE)}
        return _state(arrays, specs), late, about

    def _items(self, iteration: int, **items: Any) -> Any:
        import orbax.checkpoint as ocp

        return self._manager.restore(iteration, args=ocp.args.Composite(**items))

    def _check_fits(self, iteration: int, before: dict[str, str], wanted: dict[str, Any]) -> None:
        """A sound checkpoint of something else is not damaged, and no reason to go further back."""
        now = _shapes(wanted)
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise Misfit(
                    f"checkpoint {iteration} in {self.folder} is not of this algorithm: `{name}` "
                    f"was {before.get(name, 'not there')} and is {now.get(name, 'not there')}. Use "
                    f"the code that trained it, or begin a new run."
                )

    def _guard(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except Exception as error:
            there = self.iterations()
            last = f"checkpoint {there[-1]} is whole" if there else "there is none before it"
            raise CheckpointError(
                f"checkpoint {self._writing} could not be written into {self.folder}: "
                f"{_reason(error)}; {last}. Mend that, then continue with --resume."
            ) from error


def _manager(folder: Path, keep: int) -> Any:
    import orbax.checkpoint as ocp
    from orbax.checkpoint import checkpoint_managers as policies

    _hush_the_library()

    def score(metrics: Any) -> float:
        return metrics["score"]

    best = policies.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
    return ocp.CheckpointManager(
        folder,
        options=ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            best_fn=score,
            # A half-written one is told about, not tidied away before anybody could see it.
            cleanup_tmp_directories=False,
        ),
    )


@functools.cache
def _hush_the_library() -> None:
    """Nothing twice: what orbax logs as an error it raises as well, and that is what we tell.

    Where a read or write fails, its other parts come back to an event loop that is closed by then,
    and Python would print a traceback for each.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    usual = sys.unraisablehook

    def hook(found: Any) -> None:
        if str(found.exc_value) != "Event loop is closed":
            usual(found)

    sys.unraisablehook = hook


def _check_room(folder: Path, arrays: dict[str, Any]) -> None:
    """Before writing: what fails in the middle of it is told less clearly."""
    # Beside its numbers every array has a description of its own, in a block of the disk.
    needed = sum(x.nbytes + 4096 for x in arrays.values())
    free = shutil.disk_usage(folder).free
    if free < needed:
        found, wanted = bytes_text(free), bytes_text(needed)
        raise OSError(errno.ENOSPC, f"it needs {wanted}, and {found} are free")


def _arrays(state: Any) -> dict[str, Any]:
    """The leaves by name, random keys as the numbers they are; nothing of what is empty."""
    named = zip(leaf_names(state), jax.tree.leaves(state), strict=True)
    return {name: jax.random.key_data(x) if is_key(x) else x for name, x in named if x.size}


def _shapes(arrays: dict[str, Any]) -> dict[str, str]:
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}


def _spec(text: str) -> jax.ShapeDtypeStruct:
    """The inverse of a text of `_shapes`."""
    dtype, _, shape = text.partition("[")
    return jax.ShapeDtypeStruct(tuple(json.loads(f"[{shape}")), jnp.dtype(dtype))


def _together(arrays: dict[str, Any]) -> dict[str, Any]:
    """On one device what lies on several, as the parts of a split plan do; a program needs that."""
    if len({frozenset(x.sharding.device_set) for x in arrays.values()}) == 1:
        return arrays
    return jax.device_put(arrays, jax.local_devices()[0])


def _state(arrays: dict[str, Any], specs: Any) -> Any:
    """The inverse of `_arrays`."""

    def leaf(name: str, spec: Any) -> Any:
        if not spec.size:
            return jnp.zeros(spec.shape, spec.dtype)
        return with_impl(arrays[name], spec) if is_key(spec) else arrays[name]

    leaves = map(leaf, leaf_names(specs), jax.tree.leaves(specs))
    return jax.tree.unflatten(jax.tree.structure(specs), leaves)


def _marks(arrays: dict[str, Any]) -> dict[str, Any]:
    """A fingerprint of the state, in one program, and of all else, of which there may be more."""
    late = {name: x for name, x in arrays.items() if name.startswith(LATE)}
    state = {name: x for name, x in arrays.items() if name not in late}
    more = {name: _fingerprint({"": x})[""] for name, x in late.items()}
    return jax.device_get({**_fingerprint(state), **more})


@jax.jit
def _fingerprint(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A number for each array that any one changed bit changes; the same however it is sharded."""
    return {name: _mark(x) for name, x in arrays.items()}


def _mark(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        words = x.astype(jnp.uint32)
    else:
        unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
        words = jax.lax.bitcast_convert_type(x, unsigned)
        if words.dtype.itemsize == 8:
            words = words ^ (words >> 32)  # where JAX was told to use 64 bits
    words = words.astype(jnp.uint32).reshape(-1)
    # Odd weights: a changed bit changes the sum, whatever its position.
    weights = (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1) * jnp.uint32(2654435761)
    return (words * weights).sum(dtype=jnp.uint32)


def _reason(error: Exception) -> str:
    """What the operating system said, without the path through the library that asked it."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{os.strerror(errno.ENOSPC)} ({error.strerror})"
    number = error.errno if isinstance(error, OSError) else None
    if found := re.search(r"os_error_code=\\*'(\d+)", str(error)):
        number = int(found[1])
    return os.strerror(number) if number else (str(error) or repr(error)).splitlines()[0]
