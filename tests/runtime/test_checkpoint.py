"""Checkpoints on disk: whole ones come back exactly, others are refused by name."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.checkpoint import UNFINISHED, CheckpointError, Checkpoints, Misfit

Usage = namedtuple("Usage", "total used free")


class State(NamedTuple):
    w: Any
    key: Any
    flags: Any
    half: Any
    count: Any
    nothing: Any


def state_of(number: int) -> State:
    return State(
        w=jnp.arange(6.0).reshape(2, 3) + number, key=jax.random.key(number),
        flags=jnp.array([True, False]), half=jnp.full(3, number, jnp.bfloat16),
        count=jnp.int32(number), nothing=jnp.zeros((0, 4)),
    )  # fmt: skip


SPECS = jax.eval_shape(lambda: state_of(0))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Checkpoints]]:
    """Return a function that opens the checkpoints of this test's folder."""
    opened: list[Checkpoints] = []

    def open_them(keep: int = 3) -> Checkpoints:
        opened.append(Checkpoints(tmp_path / "checkpoints", keep))
        return opened[-1]

    yield open_them
    for checkpoints in opened:
        checkpoints.close()


def assert_same(state: State, expected: State) -> None:
    for name, x, y in zip(State._fields, state, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        if name == "key":
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_array_equal(x, y, name)


def about_of(folder: Path, iteration: int) -> tuple[Path, dict[str, Any]]:
    path = folder / str(iteration) / "about" / "metadata"
    return path, json.loads(path.read_text())


def damage(folder: Path, iteration: int) -> None:
    """Make the fingerprint of an array that of another one."""
    path, about = about_of(folder, iteration)
    about["fingerprint"]["w"] ^= 1
    path.write_text(json.dumps(about))


def test_a_state_comes_back_as_it_was(make: Any) -> None:
    late = {"w/actor/0": jnp.ones(4), "key/actor/0": jax.random.key(9)}
    checkpoints = make()
    checkpoints.save(5, state_of(5), score=1.0, about={"steps": 40}, late=late)
    checkpoints.wait()
    checkpoint = make().latest(SPECS)  # as another process would read it
    assert (checkpoint.iteration, checkpoint.about, checkpoint.refused) == (5, {"steps": 40}, ())
    assert_same(checkpoint.state, state_of(5))
    assert checkpoint.late.keys() == late.keys()
    np.testing.assert_array_equal(checkpoint.late["w/actor/0"], 1)
    key = jax.random.key_data(late["key/actor/0"])
    np.testing.assert_array_equal(checkpoint.late["key/actor/0"], key)


def test_the_last_ones_and_the_best_are_kept(make: Any) -> None:
    """A score that is not a number is the worst of all."""
    checkpoints = make(keep=2)
    for iteration, score in enumerate([1.0, 5.0, float("nan"), 2.0, float("nan")]):
        checkpoints.save(iteration, state_of(iteration), score=score)
    checkpoints.wait()
    assert checkpoints.iterations() == [1, 3, 4]
    assert checkpoints.best(SPECS).iteration == 1
    assert checkpoints.latest(SPECS).iteration == 4
    checkpoints.save(4, state_of(0), score=9.0)  # it is there, so nothing is written
    assert_same(checkpoints.at(4, SPECS).state, state_of(4))


@pytest.fixture
def two(make: Any) -> Checkpoints:
    """Two checkpoints, 1 and 2, of which the first is the best."""
    checkpoints = make()
    for iteration in (1, 2):
        checkpoints.save(iteration, state_of(iteration), score=-iteration)
    checkpoints.wait()
    return checkpoints


def test_a_damaged_one_is_refused_by_name(two: Checkpoints) -> None:
    damage(two.folder, 2)
    why = "checkpoint 2 is damaged (`w` has changed)"
    checkpoint = two.latest(SPECS)
    assert (checkpoint.iteration, checkpoint.refused) == (1, (why,))
    with pytest.raises(CheckpointError) as refused:
        two.at(2, SPECS)
    assert str(refused.value) == f"there is no whole checkpoint in {two.folder}: {why}."


def test_without_the_best_the_latest_is_read(two: Checkpoints) -> None:
    assert two.best(SPECS).iteration == 1
    shutil.rmtree(two.folder / "1" / "state")
    checkpoint = two.best(SPECS)
    assert checkpoint.iteration == 2 and checkpoint.refused[0].startswith("checkpoint 1 is damaged")


def test_one_of_another_algorithm_is_no_damage(two: Checkpoints) -> None:
    """The checkpoint before it is of that algorithm, too, so it is not tried."""
    other = SPECS._replace(w=jax.ShapeDtypeStruct((2, 4), jnp.float32))
    with pytest.raises(Misfit, match=r"checkpoint 2 .*array `w` was .*2, 3.*, and is now .*2, 4"):
        two.latest(other)
    with pytest.raises(Misfit, match=r"`count` was int32\[\], and is now"):
        two.latest(SPECS._replace(count=()))


def test_an_unknown_one_is_told_from_those_that_are_there(two: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint 7 in .*checkpoints\. Known: 1, 2\."):
        two.at(7, SPECS)


def test_half_written_ones_are_told_and_moved_away(two: Checkpoints) -> None:
    (two.folder / f"3{UNFINISHED}").mkdir()
    assert two.half_written() == ["checkpoint 3 is half-written"]
    assert two.latest(SPECS).refused == ("checkpoint 3 is half-written",)
    two.refuse_after(1)
    assert two.iterations() == [1] and two.half_written() == []
    moved = two.folder.parent / "refused"
    assert {path.name for path in moved.iterdir()} == {"2", f"3{UNFINISHED}"}
    two.save(2, state_of(8), score=0.0)  # and it is written anew
    assert_same(two.latest(SPECS).state, state_of(8))


def test_a_disk_that_is_too_full_is_told_before(
    two: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1000))
    with pytest.raises(CheckpointError) as refused:
        two.save(3, state_of(3), score=0.0)
    message = str(refused.value)
    assert message.startswith(f"checkpoint 3 could not be written into {two.folder}: No space left")
    assert "1000 B are free" in message and "Fix that, then run again" in message
    assert message.endswith("with --resume to continue from checkpoint 2.")
    assert two.iterations() == [1, 2]


def test_no_checkpoint_was_written(make: Any) -> None:
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*: none was written\."):
        make().latest(SPECS)


CHANGES: dict[str, Callable[[State], Any]] = {
    "w": lambda state: state.w.at[1, 2].multiply(-1),
    "flags": lambda state: state.flags[::-1],
    "half": lambda state: -state.half,
    "key": lambda state: jax.random.key(4),
}


def test_one_changed_number_changes_its_fingerprint_alone(make: Any) -> None:
    checkpoints, state = make(keep=9), state_of(3)
    changed = [state, *(state._replace(**{name: CHANGES[name](state)}) for name in CHANGES)]
    for iteration, other in enumerate(changed):
        checkpoints.save(iteration, other, score=0.0)
    checkpoints.wait()
    marks = [about_of(checkpoints.folder, k)[1]["fingerprint"] for k in range(len(changed))]
    assert marks[0].keys() == {*State._fields} - {"nothing"}
    for name, mark in zip(CHANGES, marks[1:], strict=True):
        assert {key for key in mark if mark[key] != marks[0][key]} == {name}
