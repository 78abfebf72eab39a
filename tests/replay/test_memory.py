"""The functions of a replay service give the same as those of the device replay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.core.program.service import At, Served, Serving, served_state
from hocket.replay import device, memory
from hocket.replay.calls import Insert, Reprioritize, Sample
from hocket.replay.service import LiveReplay, ReplayService
from hocket.testing import difference

CAPACITY, BATCH, MINIMUM = 64, 16, 20
ROW = {"obs": jnp.zeros(3), "more": (jnp.zeros((), jnp.int32), jnp.zeros((2, 2), jnp.bfloat16))}
SERVICE = ReplayService.of(ROW, CAPACITY, "replay")
TICKET = np.zeros((), np.uint32)
insert, sample, reprioritize = map(jax.jit, (device.insert, device.sample, device.reprioritize))


class Service:
    """A replay service, whose functions are called directly."""

    def __init__(self, how: Serving = Serving()) -> None:  # noqa: B008
        self.live = LiveReplay(SERVICE, how)
        self.live.load(None)
        self.how = how
        self._open: dict[Any, Any] = {}

    def call(self, of: Any, *arrays: Any, member: int = 0) -> list[Any]:
        if (of, member) not in self._open:
            self._open[of, member] = of.open(at=At(self.live, self.how, member))
        ticket = np.asarray(self.live.changes, np.uint32)
        self._open[of, member].start([ticket, *map(np.asarray, arrays)])
        return self._open[of, member].finish()

    def close(self) -> None:
        for live in self._open.values():
            live.close()
        self.live.close()


def new_rows(rng: np.random.Generator, *shape: int) -> Any:
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=(*shape, *x.shape)) * 100).astype(x.dtype), ROW
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rated", [False, True])
def test_all_that_the_device_replay_does(seed: int, rated: bool) -> None:
    """With masks, stale keys, wrong priorities, and before the replay is ready."""
    rng = np.random.default_rng(seed)
    service, replay = Service(), device.init(ROW, CAPACITY)
    draw = jax.jit(lambda r, u: device.sample(r, u, minimum=MINIMUM))
    old_keys, counted, readies = None, np.zeros(2, int), []
    for turn in range(40):
        real, rows = rng.random((2, 4)) < (0.0 if turn == 3 else 0.7), new_rows(rng, 2, 4)
        priority = rng.choice([0.0, 0.5, 3.0, np.nan, -1.0, 1e30], (2, 4)).astype(np.float32)
        given = (priority,) if rated else ()
        replay = insert(replay, rows, jnp.asarray(real), *map(jnp.asarray, given))
        service.call(Insert(SERVICE, rated), real, *given, *jax.tree.leaves(rows))
        uniforms = rng.random(BATCH, np.float32)
        keys, batch = draw(replay, jnp.asarray(uniforms))
        ours, probability, ready, *columns = service.call(Sample(SERVICE, MINIMUM), uniforms)
        expected = (keys, batch.probability, batch.ready, *jax.tree.leaves(batch.rows))
        assert difference([ours, probability, ready, *columns], list(expected)) == 0.0
        readies.append(bool(ready))
        errors = rng.choice([0.0, 0.3, 2.0, np.nan, -2.0, 1e30, np.inf], BATCH).astype(np.float32)
        chosen = ours if old_keys is None or turn % 3 else old_keys
        replay, counts = reprioritize(replay, jnp.asarray(chosen), jnp.asarray(errors))
        _, *our_counts = service.call(Reprioritize(SERVICE), chosen, errors)
        assert our_counts == [counts["stale_keys"], counts["bad_priorities"]]
        counted += np.array([int(x) for x in our_counts])
        assert difference(service.live.content(), replay) == 0.0
        old_keys = ours if turn % 9 == 0 else old_keys
    assert counted.min() > 0 and set(readies) == {False, True}
    assert int(replay.lap) > 2
    service.close()


def test_both_have_the_same_highest_priority() -> None:
    service, rows = Service(), new_rows(np.random.default_rng(0), 4)
    replay = device.insert(device.init(ROW, CAPACITY), rows, jnp.ones(4, bool))
    service.call(Insert(SERVICE, rated=False), np.ones(4, bool), *jax.tree.leaves(rows))
    keys = np.array([[0, 1], [1, 1], [2, 1], [3, 1]], np.uint32)
    limit = np.float32(device.HIGHEST)
    priority = np.array([2.0, np.nextafter(limit, np.float32(np.inf)), 3e38, limit], np.float32)
    for chosen in (slice(0, 3), slice(0, 4)):
        replay, counts = device.reprioritize(
            replay, *map(jnp.asarray, (keys[chosen], priority[chosen]))
        )
        _, _, bad = service.call(Reprioritize(SERVICE), keys[chosen], priority[chosen])
        assert bad == counts["bad_priorities"] == 2
        assert difference(service.live.content(), replay) == 0.0
    assert replay.highest == limit and np.isfinite(replay.tree).all()
    service.close()


def test_what_is_loaded_is_what_is_there() -> None:
    rng, service = np.random.default_rng(0), Service()
    replay = device.init(ROW, CAPACITY)
    for turn in range(30):  # before the ring is full, and then at every slot
        replay = insert(replay, new_rows(rng, 7), jnp.ones(7, bool))
        keys, _ = sample(replay, jnp.asarray(rng.random(4, np.float32)))
        high = 100.0 if turn == 5 else 2.0  # the row with the highest priority is overwritten later
        replay, _ = reprioritize(replay, keys, jnp.asarray(rng.random(4) * high))
        service.live.load(replay)
        assert difference(service.live.content(), replay) == 0.0
    service.close()


def test_shards_keep_every_row() -> None:
    """Rows and priorities stay the same from one ring to four shards and back."""
    rng, service = np.random.default_rng(0), Service(Serving(shards=4))
    replay = device.init(ROW, CAPACITY)
    for _ in range(12):
        replay = insert(
            replay, new_rows(rng, 7), jnp.ones(7, bool), jnp.asarray(rng.random(7) + 0.1)
        )
        service.live.load(replay)
        back = service.live.content()
        one, other = (
            {tuple(np.asarray(x.rows["obs"][i])): float(x.tree[CAPACITY + i])
             for i in range(int(x.size))}
            for x in (replay, back)
        )  # fmt: skip
        assert one == other and len(one) == int(replay.size)
        assert float(back.highest) == float(replay.highest)
        np.testing.assert_allclose(back.tree[1], replay.tree[1], rtol=1e-5)
    service.close()


def test_each_actor_fills_its_shard() -> None:
    service = Service(Serving(shards=2))
    rng, real = np.random.default_rng(0), np.ones(5, bool)
    for member in (0, 1, 2, 2):
        rows = jax.tree.leaves(new_rows(rng, 5))
        service.call(Insert(SERVICE, rated=False), real, *rows, member=member)
    assert [len(table) for table in service.live.tables] == [15, 5]
    keys, probability, ready, *_ = service.call(Sample(SERVICE, 1), rng.random(40, np.float32))
    assert ready and set(keys[:, 0] // (CAPACITY // 2)) == {0, 1}
    np.testing.assert_allclose(probability, 1 / 20, rtol=1e-6)
    _, stale, bad = service.call(Reprioritize(SERVICE), keys, np.full(40, 4.0, np.float32))
    assert (stale, bad) == (0, 0)
    assert sum(table.info()["total"] for table in service.live.tables) == 20 * 4.0
    service.close()


def test_calls_out_of_order_are_told() -> None:
    service = Service()
    call = Insert(SERVICE, rated=False).open(at=At(service.live, service.how))
    arrays = [
        np.ones(2, bool),
        *map(np.asarray, jax.tree.leaves(new_rows(np.random.default_rng(0), 2))),
    ]
    call.start([TICKET, *arrays])
    assert call.finish()[0] == 1
    with pytest.raises(RuntimeError, match=r"version 0 of the replay, but the newest is 1\. "):
        call.start([TICKET, *arrays])
    free = Insert(SERVICE, rated=False).open(at=At(service.live, service.how, in_order=False))
    free.start([TICKET, *arrays])
    assert len(service.live.tables[0]) == 4
    service.close()


def test_batches_are_drawn_ahead() -> None:
    service = Service(Serving(prefetch=2))
    rng = np.random.default_rng(0)
    rows = jax.tree.leaves(new_rows(rng, 30))
    uniforms = rng.random(BATCH, np.float32)
    assert not service.call(Sample(SERVICE, MINIMUM), uniforms)[2]  # so nothing is drawn ahead
    service.call(Insert(SERVICE, rated=False), np.ones(30, bool), *rows)
    for _ in range(10):
        keys, _, ready, *columns = service.call(Sample(SERVICE, MINIMUM), uniforms)
        assert ready and keys.shape == (BATCH, 2)
        np.testing.assert_array_equal(columns[-1], rows[-1][keys[:, 0]])
    drawn = service.live.tables[0].info()["samples"]
    assert 10 * BATCH <= drawn <= 13 * BATCH
    service.live.tables[0].close()
    failing = r"the service that keeps the replay failed.*was closed"
    calls = [(Sample(SERVICE, MINIMUM), uniforms)] * 4  # some are drawn ahead already
    for _ in range(2):  # the second call does not wait, either
        with pytest.raises(RuntimeError, match=failing):
            any(service.call(*call) is None for call in calls)
    service.close()


def made(capacity: int = CAPACITY) -> Served:
    with served_state():
        replay = memory.init(ROW, capacity)
    assert isinstance(replay, Served)
    return replay


MISTAKES: dict[str, tuple[Any, str]] = {
    "capacity": (lambda: made(100), "must be a power of two.*capacity=128"),
    "too many rows": (
        lambda: memory.insert(made(8), ROW, jnp.ones((3, 4), bool)),
        "12 rows at once into a replay with a capacity of 8",
    ),
    "minimum": (
        lambda: memory.sample(made(8), jnp.zeros(4), minimum=9),
        "capacity 8 never holds the 9 rows",
    ),
    "another row": (
        lambda: memory.insert(made(), {"obs": jnp.zeros((5, 3))}, jnp.ones(5, bool)),
        "have the columns .*obs:float32:3.* found float32.5, 3.",
    ),
    "other leading axes": (
        lambda: memory.insert(made(), jax.tree.map(lambda x: x[None], ROW), jnp.ones(5, bool)),
        "with `real` of shape .5.. Give each column the axes",
    ),
    "priorities of other rows": (
        lambda: memory.insert(made(), ROW, jnp.ones(5, bool), jnp.ones(4)),
        "`real` has the shape .5., found `priority` of shape .4.",
    ),
    "random keys": (
        lambda: ReplayService.of({"key": jax.random.key(0)}, 8, "replay"),
        "`key` of a row is key.*jax.random.key_data",
    ),
    "shards": (
        lambda: SERVICE.check(Serving(shards=3)),
        "64 rows, which 3 shards cannot share equally",
    ),
    "more rows than a shard has": (
        lambda: SERVICE.check(Serving(shards=8), [[(), (3, 3), (3, 3, 3)]]),
        "64 rows, 8 in each of 8 shards, but one shard is given 9 rows at once: use fewer",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    mistake, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        mistake()
