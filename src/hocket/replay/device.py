"""Prioritized replay in pure JAX: a ring of rows, and a sum tree over their priorities.

    replay = init(row, capacity=65_536)                  # shaped like one row, any pytree
    replay = insert(replay, rows, real)                  # at the highest priority so far
    keys, batch = sample(replay, uniforms, minimum=1_000)
    replay, counts = reprioritize(replay, keys, priority)

Raise priorities to the power alpha before you pass them, so that alpha = 0 means uniform sampling.
The learner computes importance weights from `batch.probability`. Nothing here is random: the
uniforms come from the algorithm's key, and equal inputs give equal rows.

Schaul et al. 2016, "Prioritized Experience Replay": https://arxiv.org/abs/1511.05952
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

# Legend: C capacity, B rows of a batch.

HIGHEST = 1e29
"""The highest priority that a replay accepts. Sums of higher ones could overflow."""


class Replay(NamedTuple):
    """Rows and their priorities. Only the functions of this file read or change the fields."""

    rows: Any
    """The stored rows, as a tree of arrays `[C, ...]` with one row for each slot."""
    tree: Array
    """The sum tree, `[2 C]`. Node 1 is the root, node i is the sum of nodes 2i and 2i + 1, and node
    C + k is the priority of the row in slot k."""
    head: Array
    """The slot that is written next."""
    lap: Array
    """The number of the current lap round the ring, counted from 1."""
    highest: Array
    """The highest priority so far. New rows get it, so that each is likely to be drawn once."""

    @property
    def capacity(self) -> int:
        return self.tree.shape[0] // 2

    @property
    def size(self) -> Array:
        """The number of rows, as an array."""
        return jnp.where(self.lap > 1, self.capacity, self.head)


class Draw(NamedTuple):
    """The rows that `sample` drew."""

    rows: Any
    """The drawn rows, as a tree of arrays `[B, ...]`."""
    probability: Array
    """The probability with which each row was drawn, `[B]`."""
    ready: Array
    """True if the replay holds at least `minimum` rows. Otherwise, do not learn from these rows."""


def init(row: Any, capacity: int) -> Replay:
    """Make an empty replay of rows like `row`: a tree of arrays, or of their shapes and dtypes."""
    check_capacity(capacity)
    return Replay(
        rows=jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), row),
        tree=jnp.zeros(2 * capacity),
        head=jnp.zeros((), jnp.int32),
        lap=jnp.ones((), jnp.uint32),
        highest=jnp.ones(()),
    )


def insert(replay: Replay, rows: Any, real: Array, priority: Array | None = None) -> Replay:
    """Insert the rows for which `real` is true. In a full replay they overwrite the oldest rows.

    Rows and `real` may have several leading axes, such as `[T, N]`, in row-major order. Without
    `priority`, new rows get the highest priority so far, and so does a row whose given priority is
    NaN, negative or above `HIGHEST`. Such invalid priorities are not reported here. But a row with
    the highest priority is drawn soon, and if its next priority is invalid too, `reprioritize`
    counts it.
    """
    capacity, num = replay.capacity, real.size
    check_rows(num, capacity)
    real, lead = real.reshape(num), real.ndim
    end = replay.head + jnp.cumsum(real, dtype=jnp.int32)
    slots = (end - real) % capacity
    at = jnp.where(real, slots, capacity)  # rows at index `capacity` are dropped

    def write(old: Array, new: Array) -> Array:
        return old.at[at].set(new.reshape(num, *new.shape[lead:]), mode="drop")

    new, highest = replay.highest, replay.highest
    if priority is not None:
        new, good = priority.reshape(num), _is_good(priority.reshape(num))
        highest = jnp.maximum(highest, jnp.max(new, where=real & good, initial=0.0))
        new = jnp.where(good, new, highest)
    priorities = replay.tree.at[at + capacity].set(new, mode="drop")
    return replay._replace(
        rows=jax.tree.map(write, replay.rows, rows),
        tree=_sum_up(priorities, slots),
        head=end[-1] % capacity,
        lap=replay.lap + (end[-1] // capacity).astype(jnp.uint32),
        highest=highest,
    )


def sample(replay: Replay, uniforms: Array, *, minimum: int = 1) -> tuple[Array, Draw]:
    """Draw one row for each of `uniforms` in [0, 1), and return `(keys, batch)`.

    The total priority is divided into B equal parts, and one row is drawn from each. If all
    priorities are zero, all rows are equally likely. Keys are `uint32[B, 2]`: the slot, and its
    generation, which is the number of times that the slot has been written. By the generation,
    `reprioritize` recognizes and ignores keys of rows that were overwritten since. While there are
    fewer than `minimum` rows, `batch.ready` is false, and `reprioritize` ignores all keys, because
    their generation is 0.
    """
    check_minimum(minimum, replay.capacity)
    num, size = uniforms.shape[0], replay.size
    at = (jnp.arange(num) + uniforms) / num
    slots, priority, probability = _descend(replay.tree, at)
    evenly = jnp.clip((at * size).astype(jnp.int32), 0, jnp.maximum(size - 1, 0))
    slots = jnp.where(priority > 0.0, slots, evenly)
    probability = jnp.where(priority > 0.0, probability, 1.0 / jnp.maximum(size, 1))
    ready = size >= max(minimum, 1)
    keys = jnp.stack([slots.astype(jnp.uint32), _generation(replay, slots) * ready], axis=-1)
    return keys, Draw(jax.tree.map(lambda x: x[slots], replay.rows), probability, ready)


def reprioritize(replay: Replay, keys: Array, priority: Array) -> tuple[Replay, dict[str, Array]]:
    """Give the rows with these `keys` new priorities; a row named twice gets the higher one.

    A compiled program cannot raise errors, so they are counted. `stale_keys` counts the keys whose
    row has been overwritten; they have no effect. `bad_priorities` counts the priorities that are
    NaN, negative or above `HIGHEST`; their rows get the highest priority so far.
    """
    slots, generation = (keys % replay.capacity)[:, 0].astype(jnp.int32), keys[:, 1]
    null = generation == 0
    fresh = ~null & (generation == _generation(replay, slots))
    bad = fresh & ~_is_good(priority)
    priority = jnp.where(bad, replay.highest, priority)
    # First set zero, then take the maximum. A slot may be named twice, with two priorities. Which
    # of them a single `set` keeps would depend on the device.
    leaves = jnp.where(fresh, slots, replay.capacity) + replay.capacity
    tree = replay.tree.at[leaves].set(0.0, mode="drop").at[leaves].max(priority, mode="drop")
    highest = jnp.maximum(replay.highest, jnp.max(priority, where=fresh, initial=0.0))
    counts = {"stale_keys": jnp.sum(~null & ~fresh), "bad_priorities": jnp.sum(bad)}
    return replay._replace(tree=_sum_up(tree, slots), highest=highest), counts


def check_capacity(capacity: int) -> None:
    """Refuse a capacity that is not a power of two from 2 to 2**29."""
    if capacity > 2**29:
        raise ValueError(f"the capacity of a replay must be at most 2**29, found {capacity}.")
    if capacity < 2 or capacity & (capacity - 1):
        above = 1 << max(capacity - 1, 1).bit_length()
        raise ValueError(
            f"the capacity of a replay must be a power of two and at least 2, found {capacity}. "
            f"Use `capacity={above}`" + (f" or `capacity={above // 2}`." if above > 2 else ".")
        )


def check_rows(num: int, capacity: int) -> None:
    """Refuse to insert more rows at once than the replay can hold."""
    if num > capacity:
        raise ValueError(
            f"cannot insert {num} rows at once into a replay with a capacity of {capacity}. "
            f"Use a larger `capacity`, fewer environments or shorter rollouts."
        )


def check_minimum(minimum: int, capacity: int) -> None:
    """Refuse a `minimum` of more rows than the replay can hold."""
    if minimum > capacity:
        raise ValueError(
            f"a replay of capacity {capacity} never holds the {minimum} rows that `minimum` asks "
            f"for. Use a smaller `minimum` or a larger `capacity`."
        )


def _is_good(priority: Array) -> Array:
    return (priority >= 0.0) & (priority <= HIGHEST)


def _generation(replay: Replay, slots: Array) -> Array:
    """Return the number of times that each slot has been written."""
    return replay.lap - (slots >= replay.head).astype(jnp.uint32)


# `_sum_up` and `_descend` loop over the levels of the tree, though their number is known. If these
# loops are unrolled, XLA delays the reads until after `reprioritize`, copies the whole tree for
# them, and takes twice as long to compile.


def _sum_up(tree: Array, slots: Array) -> Array:
    """Recompute the ancestors of `slots` from their children, so rounding errors do not add up."""

    def up(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, nodes = carry
        nodes = nodes // 2
        return tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1]), nodes

    return lax.fori_loop(0, _depth(tree), up, (tree, tree.shape[0] // 2 + slots))[0]


def _descend(tree: Array, at: Array) -> tuple[Array, Array, Array]:
    """Find the slot at each fraction `at` of the total priority, with its priority and probability.

    However sums are rounded, no slot of priority zero is chosen unless all priorities are zero.
    """
    total = jnp.where(tree[1] > 0.0, tree[1], 1.0)

    def down(_: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        nodes, at, _, _ = carry
        left, right = tree[2 * nodes], tree[2 * nodes + 1]
        go_right = (at >= left) & (right > 0.0)
        priority = jnp.where(go_right, right, left)
        at = jnp.where(go_right, at - left, at)
        return 2 * nodes + go_right, at, priority, priority / total

    start = (jnp.ones(at.shape, jnp.int32), at * total, at, at)
    nodes, _, priority, probability = lax.fori_loop(0, _depth(tree), down, start)
    return nodes - tree.shape[0] // 2, priority, probability


def _depth(tree: Array) -> int:
    return (tree.shape[0] // 2).bit_length() - 1
