"""Start instances on the nodes of a Ray cluster: `ray`, `ray:HOST:PORT`, `ray:nodes=4,cpus=8`.

Ray finds the nodes, reserves room on them, starts a steward on each, and reports its end. It
carries no message of a run. On each node there is one actor, the keeper of the steward
(`hocket.system.nodes.keeper`), which Ray never starts again: what the end of a node means is for
the run to decide.

A run reserves one bundle a node, with all its CPUs (or `cpus` of them) and as many GPUs as the run
uses there. `n1/gpu:0` is the first GPU that Ray assigns on `n1`. This launcher does not stop Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hocket.cluster.devices import Cluster
from hocket.cluster.ray_nodes import (
    RayNode,
    connect,
    counted,
    nodes_text,
    ray_module,
    ray_nodes,
    session,
    wanted_of,
)
from hocket.core.plan.data import Launch, Plan
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError
from hocket.runtime.launch import SURVEY_SECONDS, Command, Fate, Seat
from hocket.runtime.launch.seats import why_not_there
from hocket.runtime.launch.survey.machines import Surveyed, cluster_of, survey_nodes
from hocket.system.cores import MOST_CORES
from hocket.system.nodes.keeper import Keeper

LAUNCH = Launch("ray", one_process=False, one_program=False, shares_memory="node", nodes=True)
DELAY_SECONDS = 2.0
"""Seconds after which Ray surely knows that room has been given back."""
PLACE_SECONDS = 5.0
"""Seconds after which room that Ray has not reserved is not there. If it is, that takes
milliseconds, or DELAY_SECONDS."""
LINE_SECONDS = 1.0
"""Seconds within which the first line of a program that has ended is here."""
THREADS = 8
"""The calls that a keeper can answer at once."""
NODE_ID = "ray.io/node-id"
_CURE = (
    "hocket is not installed there for the Python of Ray. Install the one of this machine on every "
    "node, in the same environment as Ray."
)


class Room(NamedTuple):
    """The room that is reserved on a node: a bundle of a placement group."""

    group: Any
    bundle: int
    gpus: int


class Ray:
    """The launcher of a Ray cluster."""

    def __init__(self, argument: str = "") -> None:
        self._wanted = wanted_of(argument)
        self.launch = replace(LAUNCH, name=f"ray:{argument}" if argument else "ray")
        self._rooms: dict[str, Room] = {}

    def nodes(self, seconds: float) -> Sequence[str]:
        return [node.name for node in self._chosen(wait=0.0)]

    def survey(self, seconds: float) -> Cluster:
        chosen = self._chosen(max(0.0, seconds - SURVEY_SECONDS))
        names = [node.name for node in chosen]
        surveyed = survey_nodes(self, names, min(seconds, SURVEY_SECONDS))
        seen = [self._limited(each, node) for each, node in zip(surveyed, chosen, strict=True)]
        return cluster_of(seen, self.launch, {})

    def host(self, node: str) -> str:
        return self._nodes()[node].address

    def why_not(self, plan: Plan) -> str:
        return why_not_there(plan, tuple(self._nodes()))

    def why_not_in(self, folder: Path) -> str:
        self._nodes()
        if session() in folder.resolve().parts:
            return (
                f"{folder} is part of Ray's own folder of this session, which is removed with it. "
                f"Name another one that lasts, such as --runs /shared/runs."
            )
        return ""

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Reserve a bundle on the node of each seat, or raise at once: Ray would wait for ever."""
        nodes = self._nodes()
        new = [seat for seat in seats if seat.node not in self._rooms]
        bundles = {seat.node: self._bundle(seat, nodes[seat.node]) for seat in new}
        if not bundles:
            return
        group = _group(list(bundles.values()), [nodes[name].id for name in bundles])
        if not group.wait(min(seconds, PLACE_SECONDS)):
            _remove(group)
            raise PlanError(_why_not_placed(bundles, self._nodes()))
        for index, (name, bundle) in enumerate(bundles.items()):
            self._rooms[name] = Room(group, index, int(bundle.get("GPU", 0)))

    def start(self, seat: Seat, command: Command) -> RayMember:
        """Start a program of Python, whose path and environment are those of the node."""
        ray, node, room = ray_module(), self._nodes()[seat.node], self._rooms.get(seat.node)
        options: dict[str, Any] = {"label_selector": {NODE_ID: node.id}}
        if room:
            in_group = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            where = in_group(room.group, room.bundle)
            options = {"scheduling_strategy": where, "num_gpus": room.gpus}
        # The bundle reserves the CPUs. The keeper itself needs none, so it can always be placed.
        keeper = ray.remote(Keeper).options(
            num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=THREADS, **options
        )
        settings = {MOST_CORES: str(self._wanted.cpus or node.cpus)}
        begin = tuple(command.argv[1:]), command.stdin, settings
        return RayMember(keeper.remote(), *begin, assigned=room is not None)

    def release(self) -> None:
        for room in self._rooms.values():
            _remove(room.group)
        self._rooms.clear()

    def _nodes(self) -> dict[str, RayNode]:
        connect(self._wanted.address)
        return ray_nodes()

    def _chosen(self, wait: float) -> list[RayNode]:
        """Return the nodes that the name of the cluster asks for, after waiting for them."""
        wanted, deadline = self._wanted, time.monotonic() + DELAY_SECONDS
        while True:
            nodes = self._nodes()
            having, fitting = self._fitting(nodes)
            if len(fitting) >= (wanted.nodes or 1):
                return fitting[: wanted.nodes]
            if len(having) < (wanted.nodes or 1) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if wanted.nodes and wait and (ids := _awaited(wanted.bundle, wanted.nodes, wait)):
            return [node for node in self._nodes().values() if node.id in ids]
        waited = f" after {wait:g} s" if wait else " (`--wait 600` would wait for more)"
        raise PlanError(
            f"`{self.launch.name}` needs {wanted}, and Ray has too few{waited}: "
            f"{nodes_text(nodes)}."
        )

    def _fitting(self, nodes: Mapping[str, RayNode]) -> tuple[list[RayNode], list[RayNode]]:
        """Return the nodes that have what is wanted, and those of them that will do now.

        If the cluster names a number of nodes, only those that nobody else uses will do.
        """
        wanted = self._wanted
        having = [node for node in nodes.values() if _has(node, wanted.bundle)]
        free = [x for x in having if not x.lacks({"CPU": x.cpus, **wanted.bundle})]
        return having, free if wanted.nodes else having

    def _limited(self, surveyed: Surveyed, node: RayNode) -> Surveyed:
        """Return what a node has for a run: its CPUs and GPUs as Ray counts them."""
        if not (machine := surveyed.machine):
            return surveyed
        gpus = node.gpus if self._wanted.gpus is None else self._wanted.gpus
        devices = [
            device
            for device in machine["devices"]
            for one in [DeviceId.read(device["name"])]
            if one.is_host or (one.kind == "gpu" and one.index < gpus)
        ]
        cores = min(machine["cores"], self._wanted.cpus or node.cpus)
        return replace(surveyed, machine={**machine, "devices": devices, "cores": cores})

    def _bundle(self, seat: Seat, node: RayNode) -> Mapping[str, float]:
        """Return what to reserve on a node: its CPUs, and all GPUs up to the last that is used."""
        gpus = max((x.index + 1 for x in seat.devices if not x.is_host), default=0)
        return {"CPU": self._wanted.cpus or node.cpus} | ({"GPU": gpus} if gpus else {})


class RayMember:
    """A program on a node of a Ray cluster, and the actor that keeps it."""

    def __init__(
        self, keeper: Any, arguments: Sequence[str], stdin: bytes, settings: Mapping[str, str],
        *, assigned: bool,
    ) -> None:  # fmt: skip
        self._keeper, self._fate = keeper, None
        # The result of `start` is kept, since it tells why nothing has started.
        self._started = keeper.start.remote(arguments, stdin, settings, assigned=assigned)
        self._line, self._end = keeper.hello.remote(), keeper.end.remote()

    def hello(self, seconds: float) -> str:
        """Return the first line of the program; "" if it, or its actor, ends without one."""
        ray = ray_module()
        try:
            return ray.get(self._line, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(f"its program said nothing for {seconds:g} s") from None
        except ray.exceptions.RayError:
            return ""

    def poll(self) -> Fate | None:
        ray = ray_module()
        is_unknown = self._fate is None and ray.is_initialized()
        if is_unknown and ray.wait([self._end], timeout=0)[0]:
            ray.wait([self._line], timeout=LINE_SECONDS)
            self._note(*self._ended(ray))
        return self._fate

    def kill(self, seconds: float) -> bool:
        """Kill the program and its actor. Return True if the program has surely ended."""
        ray = ray_module()
        if self.poll() is None and ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError):
                if ended := ray.get(self._keeper.kill.remote(seconds), timeout=seconds + 1.0):
                    self._note(*ended)
            self._end_actor()
        return self._fate is not None

    def _ended(self, ray: Any) -> tuple[str, str]:
        try:
            return ray.get(self._end)
        except ray.exceptions.RayError as error:
            return f"Ray has ended its actor: {error}", ""

    def _note(self, how: str, stderr: str) -> None:
        """Note how the program has ended, and end its actor, which has nothing more to do."""
        if "No module named 'hocket" in how or "No module named hocket" in stderr.replace("'", ""):
            how = f"{how.splitlines()[0]}: {_CURE}"
        self._fate = Fate(how, stderr)
        self._end_actor()

    def _end_actor(self) -> None:
        ray = ray_module()
        with contextlib.suppress(ray.exceptions.RayError):  # it may have ended
            ray.kill(self._keeper, no_restart=True)


def _has(node: RayNode, bundle: Mapping[str, float]) -> bool:
    return all(node.total.get(kind, 0) >= count for kind, count in bundle.items())


def _group(bundles: Sequence[Mapping[str, float]], ids: Sequence[str] = ()) -> Any:
    """Have Ray reserve bundles, each on another node. `ids`, if given, are those nodes."""
    where = {"bundle_label_selector": [{NODE_ID: key} for key in ids]} if ids else {}
    return _groups().placement_group(list(map(dict, bundles)), strategy="STRICT_SPREAD", **where)


def _groups() -> Any:
    """Return Ray's module of placement groups, which a function of the same name hides."""
    ray_module()
    return importlib.import_module("ray.util.placement_group")


def _remove(group: Any) -> None:
    """Give back the room of a placement group. Once Ray is gone, nothing is left of it."""
    if (ray := ray_module()).is_initialized():
        with contextlib.suppress(ray.exceptions.RayError):
            _groups().remove_placement_group(group)


def _awaited(bundle: Mapping[str, float], count: int, seconds: float) -> set[str]:
    """Wait for nodes that have a bundle free, which an autoscaler may start; return their ids."""
    group = _group([{"CPU": 1, **bundle}] * count)
    try:
        if not group.wait(seconds):
            return set()
        table = _groups().placement_group_table(group)
        return set(table["bundles_to_node_id"].values())
    finally:
        _remove(group)


def _why_not_placed(
    bundles: Mapping[str, Mapping[str, float]], nodes: Mapping[str, RayNode]
) -> str:
    """Return why Ray has not reserved these bundles, by node."""
    lost = [f"the node `{name}` has left the cluster." for name in bundles if name not in nodes]
    short = [
        f"the node `{name}` has only {' and '.join(lacking)}, and the run needs {needs}: let "
        f"others end, or take fewer with `ray:nodes={len(bundles)},cpus=...`."
        for name, bundle in bundles.items()
        if name in nodes and (lacking := nodes[name].lacks(bundle))
        for needs in [" and ".join(counted(count, kind) for kind, count in bundle.items())]
    ]
    busy = (
        f"Ray has not reserved room on {', '.join(bundles)} within {PLACE_SECONDS:g} s. Try again."
    )
    return "\n".join([*lost, *short]) or busy


LAUNCHER = Ray
