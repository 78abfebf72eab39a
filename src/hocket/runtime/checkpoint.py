"""Checkpoints of the whole state, written in the background while training goes on.

A checkpoint carries a fingerprint of every array. A half-written or damaged
checkpoint is reported by name, and the one before it is used instead.
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
"""The suffix that orbax gives to the folder of a checkpoint until it is whole."""
LATE = "late/"
"""The prefix that marks the arrays of `Checkpoint.late` in a file. No array of the state has it."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. The message says why."""


class Misfit(ValueError):
    """The checkpoint is from another algorithm, or from an earlier version of this one."""


@dataclass(frozen=True)
class Checkpoint:
    """A saved state, and the data that was saved with it."""

    iteration: int
    state: Any
    about: dict[str, Any]
    """The dictionary that was given to `save` as `about`."""
    late: dict[str, Any]
    """The arrays that were given to `save` as `late`, with random keys as numbers."""
    refused: tuple[str, ...] = field(default=())
    """A sentence for each half-written or damaged checkpoint that was passed over."""


class Checkpoints:
    """The checkpoints of one run. The latest `keep` and the best are kept; others are deleted.

    checkpoints.save(iteration, state, score=return_mean)    # returns while it is being written
    checkpoints.latest(specs).state
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self._keep = folder.absolute(), keep
        self._writing: int | None = None

    @functools.cached_property
    def _manager(self) -> Any:
        import orbax.checkpoint as ocp  # importing it takes a second, so not at the top
        from orbax.checkpoint import checkpoint_managers as policies

        _hush_the_library()

        def score(metrics: Any) -> float:
            return metrics["score"]

        best = policies.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
        policy = policies.AnyPreservationPolicy([policies.LatestN(self._keep), best])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            best_fn=score,
            # Half-written checkpoints stay, so that `half_written` can report them.
            cleanup_tmp_directories=False,
        )
        return ocp.CheckpointManager(self.folder, options=options)

    def save(
        self,
        iteration: int,
        state: Any,
        *,
        score: float,
        about: dict[str, Any] | None = None,
        late: Mapping[str, Any] | None = None,
    ) -> None:
        """Wait until the previous checkpoint is written, then begin to write this one.

        `late` holds the arrays that `Executor.late` returned. A `score` of nan is the worst.
        """
        import orbax.checkpoint as ocp

        self.wait()
        if iteration in self._manager.all_steps():
            return
        messages = {LATE + name: x for name, x in _arrays(dict(late or {})).items()}
        arrays = _together({**_arrays(state), **messages})
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
        """Wait until everything is written. Raise `CheckpointError` if that failed."""
        self._guard(self._manager.wait_until_finished)
        self._writing = None

    def iterations(self) -> list[int]:
        """Return the iterations that have a checkpoint, damaged ones included."""
        return sorted(self._manager.all_steps())

    def half_written(self) -> list[str]:
        """Return a sentence for each checkpoint whose writing was cut short by a kill or crash."""
        names = (path.name for path in sorted(self.folder.glob(f"*{UNFINISHED}")))
        return [f"checkpoint {name.removesuffix(UNFINISHED)} is half-written" for name in names]

    def best(self, specs: Any) -> Checkpoint:
        """Read the checkpoint with the best score; if it is damaged, the latest whole one."""
        best, others = self._manager.best_step(), self.iterations()[::-1]
        return self._first_whole([best, *others] if best is not None else others, specs)

    def latest(self, specs: Any) -> Checkpoint:
        """Read the latest whole checkpoint. `specs` has the shapes and dtypes of the state."""
        return self._first_whole(self.iterations()[::-1], specs, self.half_written())

    def at(self, iteration: int, specs: Any) -> Checkpoint:
        """Read the checkpoint of one iteration."""
        if iteration not in self.iterations():
            known = ", ".join(map(str, self.iterations())) or "none"
            raise CheckpointError(
                f"there is no checkpoint {iteration} in {self.folder}. Known: {known}."
            )
        return self._first_whole([iteration], specs)

    def refuse_after(self, iteration: int) -> None:
        """Move half-written checkpoints, and all later than `iteration`, to the folder `refused`.

        The run can then write checkpoints of these iterations anew.
        """
        later = [self.folder / str(i) for i in self.iterations() if i > iteration]
        for path in [*later, *self.folder.glob(f"*{UNFINISHED}")]:
            refused = self.folder.parent / "refused" / path.name
            shutil.rmtree(refused, ignore_errors=True)
            refused.parent.mkdir(exist_ok=True)
            shutil.move(path, refused)
        self._manager.reload()

    def close(self) -> None:
        """Wait until everything is written, and close the folder."""
        if "_manager" in vars(self):  # the first read or write makes the manager
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
        raise CheckpointError(f"there is no whole checkpoint in {self.folder}: {why}.")

    def _read(self, iteration: int, specs: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        import orbax.checkpoint as ocp

        home = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        try:
            about = self._items(iteration, about=ocp.args.JsonRestore()).about
            shapes = about.pop("shapes")
            messages = {name: _spec(text) for name, text in shapes.items() if name.startswith(LATE)}
            wanted = {
                name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=home)
                for name, x in {**jax.eval_shape(_arrays, specs), **messages}.items()
            }
            self._check_fits(iteration, shapes, wanted)
            arrays = self._items(iteration, state=ocp.args.StandardRestore(wanted)).state
        except (Misfit, PermissionError):
            raise
        # For a damaged or missing file, orbax and its storage raise any of these errors.
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
        """Raise `Misfit` if the saved arrays differ from the state's in name, shape or dtype.

        No earlier checkpoint is tried then, since it would not fit either.
        """
        now = _shapes(wanted)
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise Misfit(
                    f"checkpoint {iteration} in {self.folder} does not fit this algorithm: its "
                    f"array `{name}` was {before.get(name, 'not there')}, and is now "
                    f"{now.get(name, 'not there')}. Use the code and settings that the checkpoint "
                    f"was trained with, or begin a new run."
                )

    def _guard(self, write: Callable[[], Any]) -> None:
        """Call `write`. If it fails, say in the error from where the run can continue."""
        try:
            write()
        except Exception as error:
            before = self.iterations()
            last = (
                f"checkpoint {before[-1]}"
                if before
                else "the start, as no earlier checkpoint exists"
            )
            raise CheckpointError(
                f"checkpoint {self._writing} could not be written into {self.folder}: "
                f"{_reason(error)}. Fix that, then run again with --resume to continue from {last}."
            ) from error


@functools.cache
def _hush_the_library() -> None:
    """Silence what orbax logs about a failure, since it also raises an error, which we report.

    After a failed read or write, other tasks of orbax resume on an event loop that is closed by
    then. Python would print a traceback for each of them.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            usual(unraisable)

    sys.unraisablehook = hook


def _check_room(folder: Path, arrays: dict[str, Any]) -> None:
    """Raise before writing if the disk is too full, since orbax reports that case less clearly."""
    # Each array also has a file that describes it, which takes a block of the disk.
    needed = sum(x.nbytes + 4096 for x in arrays.values())
    free = shutil.disk_usage(folder).free
    if free < needed:
        text = f"it needs {bytes_text(needed)}, and {bytes_text(free)} are free"
        raise OSError(errno.ENOSPC, text)


def _arrays(state: Any) -> dict[str, Any]:
    """Return the leaves of a state by name: random keys as numbers, and no empty arrays."""
    named = zip(leaf_names(state), jax.tree.leaves(state), strict=True)
    return {name: jax.random.key_data(x) if is_key(x) else x for name, x in named if x.size}


def _shapes(arrays: dict[str, Any]) -> dict[str, str]:
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}


def _spec(text: str) -> jax.ShapeDtypeStruct:
    """Parse a text that `_shapes` made, such as `float32[2, 3]`."""
    dtype, _, shape = text.partition("[")
    return jax.ShapeDtypeStruct(tuple(json.loads(f"[{shape}")), jnp.dtype(dtype))


def _together(arrays: dict[str, Any]) -> dict[str, Any]:
    """Move the arrays to one device, unless all lie on the same devices already.

    One program takes all of them, so they must share devices. In a plan of several places, each
    place's part of the state lies on its own devices.
    """
    if len({frozenset(x.sharding.device_set) for x in arrays.values()}) == 1:
        return arrays
    return jax.device_put(arrays, jax.local_devices()[0])


def _state(arrays: dict[str, Any], specs: Any) -> Any:
    """Return the state that `_arrays` took apart. `specs` has its structure, shapes and dtypes."""

    def leaf(name: str, spec: Any) -> Any:
        if not spec.size:
            return jnp.zeros(spec.shape, spec.dtype)
        return with_impl(arrays[name], spec) if is_key(spec) else arrays[name]

    leaves = map(leaf, leaf_names(specs), jax.tree.leaves(specs))
    return jax.tree.unflatten(jax.tree.structure(specs), leaves)


def _marks(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return a fingerprint of every array: a number that changes if any one bit changes."""
    state = {name: x for name, x in arrays.items() if not name.startswith(LATE)}
    # Late messages are taken one by one, since their number differs between checkpoints: a program
    # for all of them would be compiled anew for each number.
    late = {name: _fingerprint({"": x})[""] for name, x in arrays.items() if name not in state}
    return jax.device_get({**_fingerprint(state), **late})


@jax.jit
def _fingerprint(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a number for each array. It does not depend on how the array is sharded."""
    return {name: _mark(x) for name, x in arrays.items()}


@jax.jit  # arrays of one shape, such as parameters and Adam's moments, share a trace
def _mark(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        words = x.astype(jnp.uint32)
    else:
        unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
        words = jax.lax.bitcast_convert_type(x, unsigned)
        if words.dtype.itemsize == 8:
            words = words ^ (words >> 32)  # such words exist only with `jax_enable_x64`
    words = words.astype(jnp.uint32).reshape(-1)
    # The weights are odd, so that one changed bit at any position changes the sum modulo 2**32.
    weights = (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1) * jnp.uint32(2654435761)
    return (words * weights).sum(dtype=jnp.uint32)


def _reason(error: Exception) -> str:
    """Return the operating system's reason for an error; without one, the error's first line."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{os.strerror(errno.ENOSPC)} ({error.strerror})"
    number = error.errno if isinstance(error, OSError) else None
    if code := re.search(r"os_error_code=\\*'(\d+)", str(error)):
        number = int(code[1])
    return os.strerror(number) if number else (str(error) or repr(error)).splitlines()[0]
