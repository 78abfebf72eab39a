"""The checks that refuse a plan if it cannot run, or if its numbers would be wrong."""

from __future__ import annotations

from math import inf, lcm
from typing import TYPE_CHECKING

from hocket.core.analysis.averages import uses_averaged
from hocket.core.analysis.axes import check_kind
from hocket.core.graph.trace import Loop, ValueId
from hocket.core.graph.walk import named_by
from hocket.core.plan.checks_backend import check_backend
from hocket.core.plan.checks_free import check_free_plan, check_pairs
from hocket.core.plan.checks_services import check_services
from hocket.core.plan.traffic import flows
from hocket.core.program.backend import swappable_p
from hocket.core.program.fragment import ROLES
from hocket.errors import PlanError, unknown
from hocket.system.text import names_text

if TYPE_CHECKING:
    from hocket.core.plan.data import Place, Plan


def check(plan: Plan) -> Plan:
    """Return the plan, or refuse it with an error that names the cause.

    A strategy's plan is checked when it is made, and every plan before it runs.
    """
    if plan.compiler_flags and plan.launch.one_process:
        raise PlanError(
            f"compiler_flags ({plan.compiler_flags}) only affect new processes, and this plan runs "
            f'in the process that made it: use launch="processes", or set XLA_FLAGS yourself.'
        )
    _check_nodes(plan)
    _check_slices(plan)
    check_pairs(plan)
    _check_names(plan)
    for place in plan.places:
        _check_share(plan, place)
        _check_backend(plan, place)
    _check_channels(plan)
    _check_crossing(plan)
    _check_means(plan)
    if plan.free:
        check_free_plan(plan, plan.free)
    check_services(plan)
    for place in plan.places:
        if place.replicas > 1:
            _check_replicas(plan, place)
            _check_averaging(plan, place)
    if plan.parts != 1:
        _check_parts(plan)
    return plan


def _check_nodes(plan: Plan) -> None:
    """Refuse a replica on several nodes or on none, and a service, which no node can reach."""
    if not plan.launch.nodes:
        return
    if plan.graph.served:
        raise PlanError(
            f"a replay service can be reached on the machine of the run alone, and the launcher "
            f"`{plan.launch.name}` has other nodes: keep the replay on a device, as with "
            f"`actor_learner`, or leave out the cluster."
        )
    for place in plan.places:
        for index in range(place.replicas):
            nodes = list(dict.fromkeys(device.node for device in place.share(index)))
            if len(nodes) == 1 and nodes[0]:
                continue
            where, cure = "no node", "give it a device of a node, such as `n1/cpu:0`."
            if any(nodes):
                where = f"devices of {names_text(nodes)}"
                cure = "use a strategy with a replica for each, such as `actor_learner`."
            raise PlanError(
                f"replica {index} of `{place.name}` has {where}, and on a cluster each replica is "
                f"a process of one node: {cure}"
            )


def _check_names(plan: Plan) -> None:
    names = [place.name for place in plan.places]
    if not names or len(set(names)) < len(names):
        raise PlanError(
            f"a plan needs at least one place, and different names for all: found {names}."
        )
    known = {*ROLES, *(label.name for label in plan.graph.labels)}
    for place in plan.places:
        for entry in place.run:
            if entry not in known:
                where = f"in `run` of the place `{place.name}`"
                raise PlanError(unknown("fragment or role", entry, known, where))
    for place in plan.places:
        if place.name not in plan.where.values():
            raise PlanError(f"the place `{place.name}` runs no fragment of this graph; remove it.")


def _check_share(plan: Plan, place: Place) -> None:
    """Refuse environments or devices that replicas cannot share equally."""
    envs, replicas, devices = plan.envs_of(place.name), place.replicas, len(place.on)
    if replicas < 1:
        raise PlanError(f"the place `{place.name}` needs at least 1 replica, found {replicas}.")
    if envs % replicas:
        raise PlanError(
            f"{envs} environments cannot be shared equally by {replicas} replicas of "
            f"`{place.name}`: choose a multiple of {replicas}."
        )
    if devices and max(devices, replicas) % min(devices, replicas):
        raise PlanError(
            f"{devices} devices cannot be shared equally by {replicas} replicas of "
            f"`{place.name}`: make one number a multiple of the other."
        )
    each = max(1, devices // replicas)
    # In a single program, devices may share something else, such as seeds, which the program's
    # executor checks.
    if (replicas > 1 or len(plan.places) > 1) and envs // replicas % each:
        raise PlanError(_unequal_devices(plan, place))


def _unequal_devices(plan: Plan, place: Place) -> str:
    """Return the error for devices that cannot share a place's environments equally."""
    devices, free, num_envs = len(place.on), plan.free, plan.graph.num_envs
    if free is None or place.name != free.learner:
        return (
            f"{num_envs} environments cannot be shared equally by the {devices} devices of "
            f"`{place.name}`: choose a multiple of {devices}."
        )
    return (
        f"an iteration of `{place.name}` learns from {plan.envs_of(place.name)} of {num_envs} "
        f"environments, which its {devices} devices cannot share equally: choose a multiple of "
        f"{free.shares * lcm(devices, free.batch)} environments."
    )


def _check_slices(plan: Plan) -> None:
    """Refuse slices of devices, unless every instance that uses one is a process with one slice."""
    slices = [device for place in plan.places for device in place.on if device.slice]
    if slices and plan.launch.nodes:
        raise PlanError(
            f"{slices[0]} is a slice on another node, where none can be made yet: use whole "
            f"devices on a cluster, as `actor_learner` and `data_parallel` do."
        )
    if slices and plan.launch.one_process:
        raise PlanError(
            f"{slices[0]} is a slice, which only a process can have as its device, and this plan "
            f'runs as threads: use launch="processes".'
        )
    for place in plan.places:
        if any(device.slice for device in place.on) and len(place.on) > place.replicas:
            raise PlanError(
                f"each replica of `{place.name}` would have {len(place.on) // place.replicas} "
                f"slices, and a process can have only one: use {len(place.on)} replicas, or one "
                f"slice for each replica."
            )


def _check_backend(plan: Plan, place: Place) -> None:
    owner = plan.projection.placement.node
    nodes = [n for n in plan.graph.nodes if owner.get(n.id) == place.name]
    functions = {fn for n in nodes for fn in named_by(swappable_p, n.eqn)}
    check_backend(place.backend, functions, place.share(0), place.name)


def _check_channels(plan: Plan) -> None:
    known = [f"{flow.source} -> {flow.target}" for flow in flows(plan)]
    for name, channel in plan.channels.items():
        if name not in known:
            raise PlanError(unknown("channel", name, known))
        whole = all(type(x) is int for x in (channel.capacity, channel.lag))
        if not whole or channel.capacity < 1 or channel.lag < 0 or not 0 <= channel.delay < inf:
            raise PlanError(
                f"the channel `{name}` needs an integer capacity >= 1, an integer lag >= 0 and a "
                f"finite delay >= 0: found capacity={channel.capacity!r}, lag={channel.lag!r} and "
                f"delay={channel.delay!r}. For places that do not wait, use a `Free` schedule."
            )
        if channel.pack and plan.launch.one_process:
            raise PlanError(
                f"the channel `{name}` cannot be packed: within one process arrays are passed on "
                f'as they are. Leave `pack` out, or use launch="processes".'
            )


def _check_crossing(plan: Plan) -> None:
    """Refuse a lag inside a loop, and numbers of replicas that do not fit each other.

    If values cross between two places, one of their numbers of replicas must divide the other.
    """
    for t in plan.projection.transfers:
        if t.loops and (lag := plan.channel_of(t).lag):
            what = ", ".join(plan.graph.values[v].name for v in t.values[:3])
            raise PlanError(
                f"the channel `{t.source} -> {t.target}` cannot be late (lag={lag}): {what} "
                f"crosses {t.times} times an iteration, and only what crosses once can be an "
                f"iteration old. Put both ends of the loop on one place, or use lag=0."
            )
    for flow in flows(plan):
        a, b = plan.instances(flow.source), plan.instances(flow.target)
        if max(a, b) % min(a, b):
            raise PlanError(
                f"values cannot be shared out between {a} replicas of `{flow.source}` and {b} of "
                f"`{flow.target}`: make one number a multiple of the other."
            )


def _check_means(plan: Plan) -> None:
    for place, mean in plan.means.items():
        if place not in plan.averaging:
            where = ", ".join(f"`{name}`" for name in sorted(plan.averaging)) or "none"
            raise PlanError(
                f"`{place}` averages nothing, so leave it out of `means`. Places that average: "
                f"{where}."
            )
        if not 0 <= mean.delay < inf:
            raise PlanError(f"the mean of `{place}` takes a finite delay >= 0, found {mean.delay}.")


def _check_replicas(plan: Plan, place: Place) -> None:
    """Refuse a plan if values that may be wrong would leave a replica of `place`.

    A value leaves a replica if it is sent to another place, or is part of the state or a metric.
    The inputs of `averaged` are not checked: if they may be wrong, so may their mean, which is
    refused where it leaves a replica. So nobody sees a wrong value.
    """
    axes, kinds = plan.axes_on(place), plan.kinds[place.name]
    values = plan.graph.values

    def check(value: ValueId, what: str) -> None:
        kind = kinds.get(value) or axes.from_outside(value)
        check_kind(axes, value, kind, what, place.name)

    for t in plan.projection.transfers:
        for v in t.values:
            if place.name == t.source:
                check(v, f"{values[v].name}, sent to `{t.target}`")
            elif place.name == t.target:
                received = f"{values[v].name}, received from `{t.source}`"
                check_kind(axes, v, axes.from_outside(v), received, place.name)
    for v, out in plan.projection.placement.held(place.name).items():
        for value in (v, out):
            check(value, f"`{values[v].name}` of the state")
    for name, out in zip(sorted(plan.graph.metrics), plan.graph.reported, strict=True):
        if plan.projection.placement.reports[out] == place.name:
            check(out, f"the metric `{name}`")


def _check_averaging(plan: Plan, place: Place) -> None:
    each = len(place.on) // place.replicas
    if not plan.launch.one_program and place.name in plan.averaging and each > 1:
        raise PlanError(
            f"replicas that are processes can average only with one device each, and those of "
            f"`{place.name}` have {each}. Use as many devices as replicas, or "
            f'launch="threads".'
        )


def _check_parts(plan: Plan) -> None:
    """Refuse `parts` if cutting the environments of a loop into parts would change its numbers.

    A part is like a replica: it has a share of the environments, and nothing that it computes may
    depend on the environments of other parts.
    """
    if plan.parts < 1:
        raise PlanError(f"parts must be at least 1, found {plan.parts}.")
    loops = [n for n in plan.graph.nodes if isinstance(n, Loop) and n.id in plan.cut_loops]
    if not loops:
        raise PlanError(
            f"parts={plan.parts} cuts loops that cross places, and none does here. Use parts=1."
        )
    members = {place for loop in loops for place in plan.projection.placement.members(loop)}
    for place in plan.places:
        if place.name in members:
            _check_parts_of(plan, place, loops)


def _check_parts_of(plan: Plan, place: Place, loops: list[Loop]) -> None:
    each = plan.graph.num_envs // place.replicas
    devices = max(1, len(place.on) // place.replicas)
    if each % (plan.parts * devices):
        raise PlanError(
            f"parts={plan.parts} must divide the {each // devices} environments that a replica of "
            f"`{place.name}` has on each device: use another number of parts, or a "
            f"multiple of {place.replicas * devices * plan.parts} environments."
        )
    if place.name in plan.grouped:
        raise PlanError(
            f"the replicas of `{place.name}` are one program, so its loops cannot run in "
            f"{plan.parts} parts. Use parts=1."
        )
    axes, placement = plan.axes_on(place, plan.parts), plan.projection.placement
    inner = {n.id for loop in loops for n, _ in loop.body.walk()}
    for n in plan.graph.nodes:
        if n.id in inner and placement.node.get(n.id) == place.name and uses_averaged(n.eqn):
            raise PlanError(
                f"`{n.title}` at {n.where} averages over environments in a loop that crosses "
                f"places, so that loop cannot run in {plan.parts} parts. Use parts=1."
            )
    kinds = axes.on_place(
        lambda n: (n.id in inner and placement.node.get(n.id) == place.name) or placement.is_free(n)
    )
    for v in (v for loop in loops for v in (*loop.body.outputs, *_sent(plan, place, loop))):
        if placement.home.get(v) == place.name:
            what = f"{plan.graph.values[v].name}, in a loop that runs in {plan.parts} parts"
            check_kind(axes, v, kinds.get(v) or axes.from_outside(v), what, place.name)


def _sent(plan: Plan, place: Place, loop: Loop) -> set[ValueId]:
    """Return the values that a place sends in a loop."""
    sends = [t for t in plan.projection.transfers if t.source == place.name and loop.id in t.loops]
    return {v for t in sends for v in t.values}
