"""The host functions that an instance keeps open: their calls, state, failures and end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.core.program.host import call_host, calling
from hocket.core.program.service import At, Serving
from hocket.runtime.host_calls.calls import PREFIX, HostFunctions, is_one_cpu
from hocket.system.events import Closed
from tests.runtime.host_calls.counter import Counter

SPEC = [jax.ShapeDtypeStruct((2,), np.dtype(np.float32))]


def called(hosts: HostFunctions, counter: Counter, times: int = 1) -> list[float]:
    zero = [np.zeros(2, np.float32)]
    return [float(hosts(counter, zero)[0][0]) for _ in range(times)]


def test_a_function_is_opened_once_when_it_is_first_called() -> None:
    hosts, one, other = HostFunctions(), Counter("one"), Counter("other")
    assert called(hosts, one, 3) == [1, 2, 3] and called(hosts, other) == [1]
    assert len(one.opened) == len(other.opened) == 1
    assert not one.opened[0].watched and one.opened[0].at is None


def test_a_function_of_a_service_is_told_where_it_is() -> None:
    hosts, where = HostFunctions(), At(["address"], Serving())
    hosts.find = {cast(Any, "box"): where}.__getitem__
    for counter, at in ((Counter(service="box"), where), (Counter(), None)):
        called(hosts, counter)
        assert counter.opened[0].at is at


def test_state_is_saved_and_goes_on() -> None:
    before, counter = HostFunctions("actor/1"), Counter()
    called(before, counter, 5)
    late = before.late()
    assert list(late) == [f"{PREFIX}actor-1"]
    (packed,) = late.values()
    # Each size costs a compilation where it is loaded, so there are few of them.
    assert packed.dtype == np.uint8 and packed.size & (packed.size - 1) == 0
    after = HostFunctions("learner/0")
    after.load({**late, "w/actor/0/0": np.ones(3)})
    assert after.late().keys() == {f"{PREFIX}learner-0"}  # though nothing was called since
    assert called(after, counter) == [6]


def test_all_instances_states_are_loaded_and_each_function_finds_its_own() -> None:
    parts = []
    for name, times in (("one", 2), ("other", 7)):
        hosts = HostFunctions(name)
        called(hosts, Counter(name), times)
        parts.append(hosts.late())
    both = HostFunctions()
    both.load({**parts[0], **parts[1]})
    assert called(both, Counter("one")) == [3] and called(both, Counter("other")) == [8]


def test_loading_begins_anew() -> None:
    hosts, counter = HostFunctions(), Counter()
    called(hosts, counter, 3)
    hosts.failure = ValueError("before")
    hosts.load({})
    assert counter.opened[0].is_closed and hosts.failure is None
    assert called(hosts, counter) == [1] and len(counter.opened) == 2


def test_if_one_function_cannot_be_saved_nothing_is() -> None:
    hosts = HostFunctions()
    called(hosts, Counter("saved"))
    called(hosts, Counter("lost", saves=False))
    assert hosts.late() == {}


def test_what_a_service_keeps_is_not_saved_with_a_function() -> None:
    hosts = HostFunctions()
    called(hosts, counter := Counter("saved"), 2)
    called(hosts, Counter("of a box", saves=False, service="box"))
    again = HostFunctions()
    again.load(hosts.late())
    assert called(again, counter) == [3]


def test_the_first_failure_is_kept_for_whoever_asks() -> None:
    class Failing(Counter):
        def open(self, **_: Any) -> Any:
            raise KeyError(self.name)

    hosts = HostFunctions()
    for name in ("first", "second"):
        with pytest.raises(KeyError, match=name):
            called(hosts, Failing(name))
    assert str(hosts.failure) == "'first'"

    def program() -> None:
        raise RuntimeError("XLA's text")

    with pytest.raises(KeyError, match="first"):
        hosts.run(program)


def test_a_program_may_fail_by_itself() -> None:
    def program() -> None:
        raise RuntimeError("XLA's text")

    with pytest.raises(RuntimeError, match="XLA's text"):
        HostFunctions().run(program)


def test_a_call_that_hangs_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.runtime.host_calls.thread.LOOK_SECONDS", 0.001)
    hosts, counter, go = HostFunctions(), Counter(), threading.Event()

    def program() -> None:
        called(hosts, counter)
        counter.opened[0].hangs = TimeoutError("the environment hangs")
        go.wait(60)

    with pytest.raises(TimeoutError, match="the environment hangs"):
        hosts.run(program)
    assert counter.opened[0].watched  # since somebody asks whether it is overdue
    hosts.end()  # from this thread, because the other one will not answer
    assert counter.opened[0].is_closed
    go.set()


@pytest.mark.parametrize("at_rest", [True, False])
def test_what_has_ended_opens_nothing_again(at_rest: bool) -> None:
    hosts, counter = HostFunctions(), Counter()
    called(hosts, counter)
    hosts.end(at_rest=at_rest)
    assert counter.opened[0].is_closed
    with pytest.raises(Closed):
        hosts.get(counter)


def test_programs_call_by_slot_only_inside() -> None:
    assert HostFunctions().slot(Counter(), SPEC, SPEC) is None
    hosts, counter = HostFunctions(inside=True), Counter()
    assert hosts.slot(counter, SPEC, SPEC) == hosts.slot(counter, SPEC, SPEC)
    other = [jax.ShapeDtypeStruct((3,), np.dtype(np.float32))]
    assert hosts.slot(counter, other, other) != hosts.slot(counter, SPEC, SPEC)
    assert counter.opened == []  # until a program calls it
    hosts.end()


def test_calls_of_programs_are_noted_in_order() -> None:
    hosts, counter = HostFunctions(inside=True), Counter()
    with calling(hosts):
        fn = jax.jit(lambda x: call_host(counter, x)[0]).lower(jnp.zeros(2)).compile()
    assert float(fn(jnp.zeros(2))[0]) == 1 and hosts.noted() == []
    hosts.note(True)
    jax.block_until_ready([fn(jnp.zeros(2)) for _ in range(3)])
    noted = hosts.noted()
    assert [name for name, _, _ in noted] == ["counter"] * 3
    times = [time for _, *both in noted for time in both]
    assert times == sorted(times)
    hosts.end()
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="function is closed"):
        jax.block_until_ready(fn(jnp.zeros(2)))


def test_only_one_device_of_the_host_calls_by_itself() -> None:
    one, other, *_ = jax.local_devices()
    assert is_one_cpu([one]) and not is_one_cpu([one, other]) and not is_one_cpu([])
    assert not is_one_cpu([SimpleNamespace(platform="gpu")])
