"""Messages in one block arrive bit for bit as they were sent, whichever end packs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import Channel, Plan
from hocket.cluster import Cluster
from hocket.core.plan.traffic import flows
from hocket.runtime.channels import Here
from hocket.runtime.channels import packing as packing_module
from hocket.runtime.channels.host_arrays import is_key, to_host
from hocket.runtime.channels.joins import FIRST, Assembly, Concat, Part
from hocket.runtime.channels.links import Link
from hocket.runtime.channels.packing import LARGE, Packed, Packing, packing, packs, unpack
from hocket.runtime.channels.transports.shared_memory import TRANSPORT
from hocket.runtime.distributed import SAMPLE_AGE, Split
from hocket.runtime.executor import advance
from hocket.runtime.free.newest import NewestShared
from hocket.runtime.instance.wiring import End
from hocket.strategies import resolve
from hocket.system.shared_memory import MemoryFile, Space
from hocket.testing import difference
from tests.cases import graph_of
from tests.forked import quick

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint32", "int32", "float16", "bfloat16", "float32",
    "float8_e4m3fn", "complex64", "int4",
)  # fmt: skip
WIDE = ("float64", "int64", "uint64", "complex128")
KEYS = ("threefry2x32", "rbg")
HERE = jax.sharding.SingleDeviceSharding(jax.devices()[0])

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def arrays(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Any]]:
    one = st.tuples(st.sampled_from(kinds), shapes, st.integers(0, 2**31 - 1))
    return st.lists(one.map(lambda drawn: array(*drawn)), min_size=1, max_size=8)


def array(kind: str, shape: tuple[int, ...], seed: int) -> Any:
    """Return an array of random bits, NaNs and subnormal numbers among them."""
    if kind in KEYS:
        return jax.random.split(jax.random.key(seed, impl=kind), shape)
    dtype, random = jnp.dtype(kind), np.random.default_rng(seed)
    if kind in ("bool", "int4"):
        return jnp.asarray(random.integers(0, 2, shape), dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return jnp.asarray(np.frombuffer(random.bytes(size), dtype).reshape(shape))


def specs(message: list[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in message)


def unpacked(message: Packed) -> list[Any]:
    joins = tuple(Assembly(FIRST, (Part(0, k),)) for k in range(len(message.packing.like)))
    return unpack([message], joins, HERE)


def assert_same(arrived: Any, message: list[Any]) -> None:
    for x, y in zip(arrived, message, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert to_host(x).tobytes() == to_host(y).tobytes()


def check_round_trip(message: list[Any]) -> None:
    message = [*message, jnp.arange(3)]  # without a small array nobody packs
    how = packing(specs(message))
    plain, block = (how.to_slot(message, packed=packed) for packed in (False, True))
    as_bytes = [
        b"".join(x.tobytes() + bytes(-x.nbytes % 64) for x in slot) for slot in (plain, block)
    ]
    assert as_bytes[0] == as_bytes[1]  # a packed reader and an unpacked one see the same slot
    received = how.from_slot(block, packed=True)
    assert_same(received, message)
    assert_same(unpacked(received), message)
    assert_same(how.from_slot(plain, packed=False), message)


@settings(max_examples=25, deadline=None)
@given(arrays((*DTYPES, *KEYS)))
def test_round_trip(message: list[Any]) -> None:
    check_round_trip(message)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "float32"])
def test_every_bit_of_a_nan_is_kept(kind: str) -> None:
    """Arithmetic may set a bit of it, so a message must not go through any."""
    size = jnp.dtype(kind).itemsize
    bits = np.frombuffer(b"\xad\x7f\x81\xff" * 6, f"uint{8 * size}")[:3]
    check_round_trip([jnp.asarray(bits.view(jnp.dtype(kind)))])


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_round_trip_of_wide_numbers(data: st.DataObject) -> None:
    with jax.enable_x64(True):
        check_round_trip(data.draw(arrays((*WIDE, "bool", "float32"))))


@settings(max_examples=8, deadline=None)
@given(arrays(("bool", "bfloat16", "float32", "int8", *KEYS)), st.integers(2, 4))
def test_several_messages_are_put_together_by_one_program(message: list[Any], count: int) -> None:
    message = [x for x in message if x.ndim]
    if not message:
        return
    how = packing(specs(message))
    block = how.to_slot(message, packed=True)
    joins = tuple(
        Assembly(Concat(x.ndim - 1), tuple(Part(m, k) for m in range(count)))
        for k, x in enumerate(message)
    )
    values = unpack([how.from_slot(block, packed=True)] * count, joins, HERE)
    assert_same(values, [jnp.concatenate([x] * count, x.ndim - 1) for x in message])


def test_large_arrays_go_by_themselves() -> None:
    message = [jnp.arange(LARGE // 4, dtype=jnp.float32), jnp.arange(3), jnp.ones(5)]
    how = packing(specs(message))
    assert (how.small, how.large) == ((1, 2), (0,))
    check_round_trip(message)
    assert not packing(specs(message[:2])).pays()  # there is still only one small array


def test_part_of_a_message() -> None:
    message = [jnp.arange(3), jnp.ones((2, 2)), jnp.zeros(300_000), jax.random.key(3)]
    how = packing(specs(message))
    received = how.from_slot(how.to_slot(message, packed=True), packed=True)
    last = tuple(Assembly(FIRST, (Part(0, k),)) for k in range(1, len(message)))
    assert_same(unpack([received], last, HERE), message[1:])


def test_what_is_on_the_host_does_not_go_to_the_device_and_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = [jnp.arange(3), np.ones((2, 2), np.float32)]
    with monkeypatch.context() as patch:
        patch.delattr(packing_module, "_packed")
        block = packing(specs(message)).to_slot(message, packed=True)
    assert_same(packing(specs(message)).from_slot(block, packed=True), message)


def test_who_packs() -> None:
    (one, *_), both = jax.devices(), jax.devices()[:2]
    assert not packs(None, [one], sends=True) and packs(None, [one], sends=False)
    assert not packs(None, [one], sends=False, loops=True)  # a program reads it where it lies
    assert packs(True, [one], sends=True) and not packs(False, [one], sends=False)
    assert not packs(None, both, sends=False) and not packs(True, both, sends=True)


MESSAGE = [jnp.arange(4.0), jax.random.split(jax.random.key(1), 2), jnp.array([True, False])]


@pytest.mark.parametrize("delay", [0.0, 0.001])
@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True)])
def test_an_end_may_pack_and_the_other_not(ends: tuple[bool, bool], delay: float) -> None:
    link = Link(cast(Any, None), 0, 0, cast(Any, (0, 1, 2)), specs(MESSAGE), slots=2, delay=delay)
    room = TRANSPORT.room(link)
    space = Space(MemoryFile.create(room), 0, room)
    sender, receiver = (
        End(replace(link, packed=packed), TRANSPORT, Here(sends, space=space))
        for sends, packed in zip((True, False), ends, strict=True)
    )
    for end in (sender, receiver):
        end.connect(None, 1)
    for _ in range(3):
        sender.send(MESSAGE)
        received = receiver.receive()
        assert isinstance(received, Packed) == ends[1]
        assert_same(received, MESSAGE)


@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True)])
def test_versions_are_packed_too(ends: tuple[bool, bool]) -> None:
    file = MemoryFile.create(NewestShared.nbytes(specs(MESSAGE)))
    writer, reader = (
        NewestShared(file.memory, 0, specs(MESSAGE), packed=packed) for packed in ends
    )
    for version in range(5):
        writer.write(version, MESSAGE)
        assert reader.read()[0] == version
        assert_same(reader.read()[1], MESSAGE)


def test_programs_are_shared_by_channels_of_one_kind() -> None:
    assert packing(specs(MESSAGE)) is packing(specs(MESSAGE))
    assert isinstance(packing(specs(MESSAGE)), Packing) and is_key(MESSAGE[1])


def packed_plan(plan: Plan, pack: bool | None = True) -> Plan:
    ways = ("actor -> learner", "learner -> actor")
    channels = {way: replace(plan.channels.get(way, Channel()), pack=pack) for way in ways}
    return replace(plan, channels=channels, launch=quick("processes"))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_packed_processes_compute_what_threads_compute(name: str, lag: int) -> None:
    graph = graph_of(name, exact=True)
    plain = resolve(f"actor_learner:actors=2,lag={lag}")(graph, Cluster.local())
    runs = []
    packs = (None,) if lag else (True, False)
    for plan in (plain, *(packed_plan(plain, pack) for pack in packs)):
        executor = Split(plan)
        executor.start(jax.random.key(0))
        metrics = advance(executor, 4)
        late = {name: to_host(x) for name, x in executor.late().items()}
        runs.append((executor.state(), metrics, late))
        counted = executor.nbytes()
        assert counted == {(f.source, f.target): 4 * f.nbytes for f in flows(plan)} or lag
        executor.close()
    assert all(difference(runs[0], other) == 0.0 for other in runs[1:])


def test_packed_and_free() -> None:
    plan = resolve("actor_learner:actors=2,lag=free")(graph_of("dqn"), Cluster.local())
    executor = Split(packed_plan(plan))
    executor.start(jax.random.key(0))
    ages = advance(executor, 12)[SAMPLE_AGE]
    assert ages.max() <= 2
    state, late = executor.state(), executor.late()
    executor.load(state, late)
    advance(executor, 4)
    executor.close()
