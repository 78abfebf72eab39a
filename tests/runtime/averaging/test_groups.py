"""Groups that average by the native library: their call sites, counts and introductions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.core.plan.device_id import device_ids
from hocket.runtime.averaging import Members, Sites, Space, Unavailable, groups
from hocket.runtime.averaging.groups import (
    GpuGroup,
    InMemory,
    MemoryGroup,
    SharedMemoryWay,
    control_bytes,
)
from hocket.runtime.averaging.ways.shm import OnHost, nbytes
from hocket.system.network.rendezvous import Rendezvous
from hocket.system.shared_memory import MemoryFile
from tests.runtime.averaging.replicas import SITES


def space_of(nbytes: int) -> Space:
    return Space(MemoryFile.create(nbytes), 0, nbytes)


def test_ways_of_the_library_need_memory_that_all_share() -> None:
    way, members = SharedMemoryWay(), Members(device_ids(["cpu:0"]))
    assert way.why_not(members) == "" and way.is_choice(members)
    assert "here they share none" in way.why_not(Members(members.on, shares_memory=False))


def test_who_is_found_in_memory_needs_no_address() -> None:
    joined: list[Any] = []
    listener = InMemory(lambda: joined.append("here") or cast(Any, "joined"))
    assert listener.address == b"" and joined == []  # nobody enters before all listen
    assert listener.join([b"", b""], 3) == "joined" and joined == ["here"]
    listener.close()


class Lined(MemoryGroup):
    """A group whose vectors are padded to lines of 64 bytes. It notes the calls of its target."""

    target, counter, line = "none", "none", 64

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def called(self, specs: Any, parts: Sequence[jax.Array], nbytes: int, root: int) -> Any:
        self.calls.append((specs, nbytes, root))
        return 3 * parts[0]


def test_a_call_takes_its_arrays_as_a_vector_of_whole_lines() -> None:
    group = Lined()
    one, two = group(jnp.ones((2, 8)), jnp.float32(2), root=1)
    assert one.shape == (2, 8) and float(one[1, 7]) == 3 and float(two) == 6
    assert group.calls == [(jax.ShapeDtypeStruct((17,), jnp.float32), 128, 1)]


def test_each_call_site_has_a_number_and_each_call_counts() -> None:
    """A group of one replica is its own mean, and nobody has to wait."""
    sites = [[jnp.ones(1000)], [jnp.ones(3), jnp.float32(2)]]
    group = OnHost(space_of(nbytes(sites, 1)), 1, 0)

    @jax.jit
    def program(xs: Any, ys: Any) -> Any:
        return group(*xs), group(*ys)

    text = program.lower(*sites).as_text()
    assert [f"tag = {tag}" in text for tag in range(3)] == [True, True, False]
    means = program(*sites)  # which traces nothing again
    jax.tree.map(np.testing.assert_array_equal, means, tuple(map(list, sites)))
    jax.block_until_ready(program(*sites))
    calls, sent, waited = group.counts()
    assert calls == 4 and sent == 2 * 4 * 1004 and waited >= 0
    group.check()


def test_a_closed_group_has_no_mean() -> None:
    group = OnHost(space_of(nbytes(SITES, 2)), 2, 0)
    fn = jax.jit(group).lower(jnp.ones(10)).compile()
    group.close()
    with pytest.raises(Exception, match="another replica has ended"):
        jax.block_until_ready(fn(jnp.ones(10)))


def test_replicas_compare_in_whole_pages() -> None:
    one, two = (control_bytes([[jnp.ones(3)]], replicas) for replicas in (1, 2000))
    assert one % 4096 == two % 4096 == 0 and 0 < one < two
    assert control_bytes([[jnp.ones(1 << 20)]], 2) == control_bytes([[jnp.ones(3)]], 2)


class Introduced(GpuGroup):
    """A replica that says who it is, or fails, and remembers who the others are."""

    target, counter = "no GPU", "no GPU"

    def __init__(self, space: Space, index: int, error: Exception | None = None) -> None:
        self.error, self.heard = error, list[bytes]()
        super().__init__(space, 2, index, SITES)

    def _introduction(self, sites: Sites) -> bytes:
        if self.error:
            raise self.error
        return b"replica %d of %d sites" % (self._index, len(sites))

    def _enter(self, introductions: Sequence[bytes]) -> None:
        self.heard = list(introductions)


def entered(*errors: Exception | None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the replicas that have entered a group in threads, or the errors they raised."""
    monkeypatch.setattr(groups, "register", lambda target, platform: None)
    space = space_of(control_bytes(SITES, 2) + Rendezvous.nbytes(2))
    results: list[Any] = [None, None]

    def enter(index: int) -> None:
        try:
            results[index] = Introduced(space, index, errors[index])
        except Unavailable as error:
            results[index] = error

    threads = [threading.Thread(target=enter, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_replicas_on_gpus_introduce_themselves_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = entered(None, None, monkeypatch=monkeypatch)
    assert one.heard == two.heard == [b"replica 0 of 2 sites", b"replica 1 of 2 sites"]


def test_a_replica_that_cannot_enter_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Unavailable("no memory on the GPU")
    one, two = entered(None, error, monkeypatch=monkeypatch)
    assert str(one) == "no memory on the GPU (in replica 1)" and two is error
