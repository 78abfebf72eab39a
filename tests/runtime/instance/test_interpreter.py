"""The interpreter: each of the five instructions, and when it lets others take their turn."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hocket import Place, Plan
from hocket.core.projection.instructions import Compute, Host, Receive, Repeat, Send, Transfer
from hocket.runtime.host_calls.calls import HostFunctions
from hocket.runtime.instance.account import Account, Wait
from hocket.runtime.instance.interpreter import Interpreter
from hocket.runtime.instance.programs import Programs
from hocket.runtime.instance.segment import Segments
from hocket.runtime.instance.store import Store, Values
from hocket.runtime.observe.status import RECEIVING, new_statuses
from tests.core.tiny import (
    LENGTH,
    NUM_ENVS,
    LiveDoubled,
    State,
    act,
    env,
    leaf,
    learn,
    on_host,
    traced,
)

SPLIT = (Place("actor", ("env", "act")), Place("learner", ("learn",)))
APART = (Place("env", ("env",)), Place("rest", ("act", "learn")))
X = np.arange(4.0, dtype=np.float32) / 4


class Boxes:
    """An inbox and an outbox; `receive` returns what `answer` makes of the oldest message."""

    def __init__(self, answer: Any = None) -> None:
        self.log: list[Any] = []
        self.sent: deque[list[Any]] = deque()
        self._answer = answer

    def send(self, transfer: Transfer, values: Values) -> None:
        self.log.append("send")
        self.sent.append([values[v] for v in transfer.values])

    def wait_for(self, transfer: Transfer) -> Wait:
        self.log.append("wait")
        return Wait(RECEIVING, transfer, (0,))

    def receive(self, transfer: Transfer) -> Values:
        self.log.append("receive")
        message = self._answer(*self.sent.popleft())
        return dict(zip(transfer.values, message, strict=True))


def account_of(plan: Plan, place: str) -> Account:
    return Account(plan, place, 0, new_statuses(plan)[0])


def interpreter_of(plan: Plan, place: str, boxes: Any = None, **given: Any) -> Interpreter:
    store = Store(plan, place, 0)
    programs = Programs(plan, place, store, None, Segments())
    parts = {"hosts": HostFunctions(), "account": account_of(plan, place), **given}
    boxes = boxes or Boxes()
    return Interpreter(plan, store, programs, inbox=boxes, outbox=boxes, **parts)


def values_of(plan: Plan, **leaves: Any) -> Values:
    return {
        **plan.graph.constants,
        **{leaf(plan.graph, name): jnp.asarray(x) for name, x in leaves.items()},
    }


def once(s: State) -> tuple[State, State]:
    x = env(s["x"], act(s["x"]))
    return {"w": learn(s["w"], x), "x": x}, {}


def test_a_segment_replaces_what_it_was_the_last_to_need() -> None:
    plan = Plan(traced(once, "w x"), SPLIT)
    actor, (compute, send) = interpreter_of(plan, "actor"), plan.projection.programs["actor"]
    assert isinstance(compute, Compute) and isinstance(send, Send)
    values, x = values_of(plan, x=X), leaf(plan.graph, "x")
    assert list(actor.run([compute], values)) == []
    assert x in compute.dead and x not in values
    moved = plan.graph.block.outputs[1]
    np.testing.assert_allclose(values[moved], X + np.tanh(X), rtol=1e-6)
    assert set(compute.outs) <= values.keys()


def test_a_message_is_sent_at_once_and_waited_for_by_turns() -> None:
    plan = Plan(traced(once, "w x"), SPLIT)
    boxes = Boxes(lambda x: [x + 1])
    (transfer,) = plan.projection.transfers
    (value,) = transfer.values
    interpreter, values = interpreter_of(plan, "actor", boxes), {value: X}
    steps = interpreter.run([Send(transfer), Receive(transfer)], values)
    wait = next(steps)
    assert boxes.log == ["send", "wait"]  # and nothing is received before the next turn
    assert wait == Wait(RECEIVING, transfer, (0,))
    assert list(steps) == [] and boxes.log[2:] == ["receive"]
    np.testing.assert_array_equal(values[value], X + 1)


def test_a_learner_chooses_samples_before_it_receives_the_first() -> None:
    plan = Plan(traced(once, "w x"), SPLIT)
    boxes = Boxes(lambda x: [x])
    (transfer,) = plan.projection.transfers
    interpreter, log = interpreter_of(plan, "learner", boxes), boxes.log
    interpreter.learning = cast(Any, SimpleNamespace(
        first=transfer, publish=lambda: log.append("publish") or "its wait",
        take=lambda: log.append("take"),
    ))  # fmt: skip
    boxes.sent.append([X])
    steps = interpreter.run([Receive(transfer)], {})
    assert cast(Any, next(steps)) == "its wait" and log == ["publish"]
    assert list(steps) == [] and log == ["publish", "take", "receive"]


def called(s: State) -> tuple[State, State]:
    x = on_host(s["x"])
    return {"w": learn(s["w"], x), "x": x}, {}


def test_a_host_function_works_while_others_take_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    start, finish = LiveDoubled.start, LiveDoubled.finish
    monkeypatch.setattr(LiveDoubled, "start", lambda *x: log.append("start") or start(*x))
    monkeypatch.setattr(LiveDoubled, "finish", lambda *x: log.append("finish") or finish(*x))
    plan = Plan(traced(called, "w x"), SPLIT)
    step = next(x for x in plan.projection.programs["actor"] if isinstance(x, Host))
    values, x = values_of(plan, x=X), leaf(plan.graph, "x")
    steps = interpreter_of(plan, "actor").run([step], values)
    assert next(steps) is None and log == ["start"]
    assert list(steps) == [] and log == ["start", "finish"]
    (out,) = step.outs
    np.testing.assert_array_equal(values[out], 2 * X)
    assert x in step.dead and x not in values


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_loop_runs_pass_by_pass_as_the_fused_program_does(reverse: bool, inside: bool) -> None:
    """A loop with a host function is driven by the interpreter, or calls the host by itself."""
    ts = np.arange(LENGTH, dtype=np.float32)

    def looping(s: State) -> tuple[State, State]:
        def one(x: Any, t: Any) -> Any:
            moved = on_host(act(x + s["y"] + t))
            return moved, (x, moved + t)

        x, (before, after) = lax.scan(one, s["x"], jnp.asarray(ts), reverse=reverse)
        state = {"w": learn(s["w"], before + after), "x": x, "y": s["y"]}
        return state, {"before": before, "after": after}

    plan = Plan(traced(looping, "w x y"), SPLIT)
    loop = next(x for x in plan.projection.programs["actor"] if isinstance(x, Repeat))
    hosts = HostFunctions(inside=inside)
    actor = interpreter_of(plan, "actor", hosts=hosts)
    values = values_of(plan, x=X, y=np.full(NUM_ENVS, 0.5, np.float32))
    values |= {v: jnp.asarray(ts) for v in loop.reads - values.keys()}
    code = plan.projection.programs["actor"]
    yields = list(actor.run([step for step in code if not isinstance(step, Send)], values))
    assert len(yields) == (1 if inside else LENGTH)

    x, rows = X, {}
    for t in (reversed if reverse else list)(range(LENGTH)):
        moved = 2 * np.tanh(x + 0.5 + t)
        rows[t] = moved + t, x
        x = moved
    last, (after, before) = plan.graph.block.outputs[1], plan.graph.block.outputs[-2:]
    np.testing.assert_allclose(values[last], x, rtol=1e-5)
    for k, value in enumerate((after, before)):
        expected = np.stack([rows[t][k] for t in range(LENGTH)])
        np.testing.assert_allclose(values[value], expected, rtol=1e-5)
    hosts.end()


def crossing(s: State) -> tuple[State, State]:
    x, xs = lax.scan(lambda x, _: (env(x, act(x)), x), s["x"], None, LENGTH)
    return {"w": learn(s["w"], xs), "x": x}, {}


@pytest.mark.parametrize("parts", [1, 2])
def test_while_one_part_waits_the_other_takes_its_turn(parts: int) -> None:
    plan = Plan(traced(crossing, "w x"), APART, parts=parts)
    assert len(plan.cut_loops) == parts - 1
    boxes = Boxes(lambda x: [jnp.tanh(x)])
    interpreter, values = interpreter_of(plan, "env", boxes), values_of(plan, x=X)
    loop = next(x for x in plan.projection.programs["env"] if isinstance(x, Repeat))
    assert list(interpreter.run([loop], values)) == [] or parts == 1
    begins = ["send", "wait"] * parts + ["receive"]
    assert boxes.log[: len(begins)] == begins
    assert boxes.log.count("receive") == LENGTH * parts
    x = X
    for _ in range(LENGTH):
        x = x + np.tanh(x)
    (carry,) = loop.carry
    np.testing.assert_allclose(values[carry.after], x, rtol=1e-5)


def test_spans_show_what_was_computed() -> None:
    plan = Plan(traced(once, "w x"), SPLIT)
    compute, *_ = plan.projection.programs["actor"]
    account = account_of(plan, "actor")
    account.spans = []
    list(interpreter_of(plan, "actor", account=account).run([compute], values_of(plan, x=X)))
    (span,) = account.spans
    assert (span.kind, span.name) == ("compute", "act, env")
