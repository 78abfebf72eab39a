"""The refusals of free plans, in which a learner and its makers do not wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.core.plan.schedule import Free, Sampling
from hocket.core.projection.instructions import Receive, Send, walk
from hocket.errors import PlanError, unknown
from hocket.system.text import names_text

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan


def check_pairs(plan: Plan) -> None:
    """Check that a free plan has one pair, of known places, with a valid `batch` and `max_age`."""
    if not isinstance(plan.schedule, Free):
        return
    if len(plan.schedule.pairs) != 1:
        pairs = ", ".join(f"`{pair}`" for pair in plan.schedule.pairs) or "none"
        raise PlanError(
            f"a free plan needs exactly one pair of a learner and makers, found {pairs}."
        )
    places = {place.name: place for place in plan.places}
    pair = plan.schedule.pairs[0]
    for name in (pair.learner, pair.makers):
        if name not in places:
            raise PlanError(unknown("place", name, places, where=f"of the free pair `{pair}`"))
    age, batch, makers = pair.max_age, pair.batch, places[pair.makers].replicas
    if type(batch) is not int or batch < 1 or makers % batch:
        raise PlanError(
            f"the free pair `{pair}` has batch={batch}, which does not divide the {makers} "
            f"replicas of `{pair.makers}` that make samples. Use one of "
            f"{', '.join(str(n) for n in range(1, makers + 1) if makers % n == 0)}."
        )
    least, at_once = makers // batch, f" and {batch} samples taken at once" if batch > 1 else ""
    if type(age) is not int or age < least:
        waits = " With max_age=0 everybody would wait, as with lag=0." if age == 0 else ""
        raise PlanError(
            f"the free pair `{pair}` has max_age={age}: with {makers} replicas of `{pair.makers}` "
            f"at work at once{at_once}, a sample may be {least} iterations old, so max_age must be "
            f"at least {least}.{waits}"
        )


def check_free_plan(plan: Plan, free: Sampling) -> None:
    """Refuse a free plan in which some instance would have to wait after all."""
    learner, maker = free.learner, free.maker
    nodes = dict.fromkeys(p.node(i) for p in plan.places for i in range(p.replicas))
    if plan.launch.nodes and len(nodes) > 1:
        raise PlanError(
            f"`{learner}` and `{maker}` do not wait for each other, which needs shared memory, and "
            f"they are on several nodes: {names_text(nodes)}. Use lag=1, or one node."
        )
    if plan.launch.shares_memory == "none":
        raise PlanError(
            f"`{learner}` and `{maker}` do not wait for each other, which needs shared memory, and "
            f"instances of the launcher `{plan.launch.name}` share none. Use another launcher, or "
            f"lag=0."
        )
    if plan.place(learner).replicas > 1:
        raise PlanError(
            f"`{learner}` has {plan.place(learner).replicas} replicas, and a learner that "
            f"does not wait for its makers must have one. Give it several devices instead."
        )
    others = [p.name for p in plan.places if p.name not in (learner, maker)]
    if others and free.makers > 1:
        raise PlanError(
            f"`{maker}` has {free.makers} replicas that do not wait for each other, and "
            f"{', '.join(others)} would have to wait for all of them: give `{maker}` one replica."
        )
    _check_transfers(plan, learner, maker)
    _check_order(plan, learner, maker)
    _check_values(plan, free)


def _check_transfers(plan: Plan, learner: str, maker: str) -> None:
    for t in plan.projection.transfers:
        what, ends = plan.graph.values[t.values[0]].name, {t.source, t.target}
        if t.source == learner and t.target != maker:
            raise PlanError(
                f"`{learner}` has a free channel to `{maker}`, and sends {what} to `{t.target}`, "
                f"which would have to wait for `{learner}`: let `{maker}` run the fragments that "
                f"need {what}."
            )
        if learner in ends and t.loops:
            raise PlanError(
                f"the channel `{learner} -> {maker}` cannot be free: {what} crosses from "
                f"`{t.source}` to `{t.target}` {t.times} times an iteration, so these two "
                f"places wait for each other in every step. Run both ends on one place, or use "
                f"lag=0."
            )
    for name, channel in plan.channels.items():
        if channel.lag:
            raise PlanError(
                f"the channel `{name}` is {channel.lag} iterations late, and `{learner}` and "
                f"`{maker}` do not wait for each other: use lag=0 there."
            )
        if name == f"{learner} -> {maker}" and channel.delay:
            raise PlanError(
                f"the channel `{name}` takes no delay, because nobody waits for its messages."
            )
        if set(name.split(" -> ")) == {learner, maker} and channel.capacity > 1:
            raise PlanError(
                f"the channel `{name}` takes no capacity, because in a free plan `max_age` bounds "
                f"the number of messages under way."
            )


def _check_order(plan: Plan, learner: str, maker: str) -> None:
    """Refuse a plan in which the learner and a maker would wait for each other in one iteration.

    Before it receives a sample, the learner must send its whole version, which is what makers act
    with. Before it sends a sample, a maker must receive the whole version.
    """
    for place, first in ((learner, Send), (maker, Receive)):
        talk = [
            step for step in walk(plan.projection.programs[place])
            if isinstance(step, Send | Receive)
            and {step.transfer.source, step.transfer.target} == {learner, maker}
        ]  # fmt: skip
        kinds = [isinstance(step, first) for step in talk]
        if kinds != sorted(kinds, reverse=True):
            turn = next(s for s, k in zip(talk, kinds, strict=True) if not k)
            what = plan.graph.values[turn.transfer.values[0]].name
            raise PlanError(
                f"the channel `{learner} -> {maker}` cannot be free: after {what} something "
                f"crosses the other way again in the same iteration, so each would wait for the "
                f"other. Use lag=0."
            )


def _check_values(plan: Plan, free: Sampling) -> None:
    """Refuse values that concern all makers, because each iteration uses samples of only some."""
    learner, maker = free.learner, free.maker
    if free.makers == 1:
        return
    home, values = plan.projection.placement.home, plan.graph.values
    sent = [(v, f"sent to `{maker}`") for t in plan.projection.transfers
            if t.source == learner for v in t.values]  # fmt: skip
    held = [(v, "of the state") for v in plan.graph.block.inputs if home[v] == learner]
    for v, where in (*sent, *held):
        if plan.axes.grown(v):
            raise PlanError(
                f"`{learner}` learns from the samples of any {free.batch} of {free.makers} "
                f"replicas of `{maker}` at a time, but `{values[v].name}`, {where}, has a part for "
                f"each environment of all replicas: give `{maker}` one replica, or use lag=0."
            )
    alike = [v for t in plan.projection.transfers if t.target == learner for v in t.values
             if plan.axes.axis(v) is None]  # fmt: skip
    if free.batch > 1 and alike:
        raise PlanError(
            f"`{learner}` learns from {free.batch} samples at once, and `{values[alike[0]].name}`, "
            f"sent by `{maker}`, is one value for all environments of a sample: give it an "
            f"environment axis, or use batch=1."
        )
    if maker in plan.averaging:
        raise PlanError(
            f"the replicas of `{maker}` average, so they would wait for each other, but with "
            f"lag=free they must not wait. Use one replica, or lag=0."
        )
