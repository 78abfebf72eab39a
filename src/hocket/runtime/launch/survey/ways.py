"""The network between the nodes of a cluster: who reaches whom, and how fast.

A probe (`hocket.system.nodes.probe`) runs on every node while this is measured. It listens where
the node's steward would listen. All pairs of nodes are measured in rounds, in which each node is in
one pair only, so that they do not slow each other down.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hocket.cluster.rates import Rate
from hocket.runtime.launch import ClusterLauncher, Command, Member, Seat
from hocket.runtime.launch.nodes import network_of
from hocket.runtime.launch.watch import GRACE_SECONDS, fate_of
from hocket.system.children import last_words
from hocket.system.messages import MessageSocket
from hocket.system.network import Network, Secret, read_address
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import listener
from hocket.system.network.plain import loads
from hocket.system.nodes import probe
from hocket.system.nodes.probe import CONNECT_SECONDS, PURPOSE, Setup, Way

CLOCK_SECONDS = 1.0
"""The offset between two clocks from which on it is a problem."""


@dataclass
class Measured:
    """The measurements between the nodes of a cluster, and the problems that they showed."""

    rates: list[Rate] = field(default_factory=list)
    round_trips: dict[str, float] = field(default_factory=dict)
    """Seconds of a round trip from this machine to each node."""
    clocks: dict[str, float] = field(default_factory=dict)
    """Seconds by which the clock of each node is ahead of this machine's."""
    problems: list[str] = field(default_factory=list)


def measure(launcher: ClusterLauncher, nodes: Sequence[str], seconds: float) -> Measured:
    """Measure the network between all nodes. `seconds` is the time that a probe has to start."""
    measured = Measured()
    with contextlib.ExitStack() as ending:
        probes = _probes(launcher, nodes, seconds, measured, ending)
        for each in list(probes.values()):
            with _noted(each.node, measured):
                _measure_from_here(each, measured)
        for pairs in _rounds(sorted(probes)):
            with ThreadPoolExecutor(max_workers=len(pairs)) as pool:
                ways = pool.map(lambda pair: _both_ways(probes[pair[0]], probes[pair[1]]), pairs)
                for each in ways:
                    _add(each, measured)
        for one, other in zip(nodes, (*nodes[1:], *nodes[:1]), strict=True):
            if one in probes and other in probes:
                with _noted(other, measured):
                    _check_last_port(probes[one], probes[other], measured)
    return measured


@contextlib.contextmanager
def _noted(node: str, measured: Measured) -> Iterator[None]:
    """Note an error of the connection to a node as a problem, and go on."""
    try:
        yield
    except OSError as error:
        measured.problems.append(f"the node `{node}`: {error}.")


class _Probe:
    """A probe on a node, as seen from the command."""

    def __init__(self, node: str, address: str, control: MessageSocket, last: int) -> None:
        self.node, self.address, self._control = node, address, control
        self.last = last
        """The last port that a run may use there; 0 if it may use any."""

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have the probe obey a command, and return the result."""
        try:
            self._control.write((command, *arguments))
            return loads(self._control.read_bytes())
        except EOFError:
            raise ConnectionError(f"the probe on `{self.node}` has ended") from None

    def close(self) -> None:
        self._control.close()


def _probes(
    launcher: ClusterLauncher,
    nodes: Sequence[str],
    seconds: float,
    measured: Measured,
    ending: contextlib.ExitStack,
) -> dict[str, _Probe]:
    """Start a probe on every node. Those that cannot be reached are problems, and left out."""
    networks = {node: network_of(launcher, node) for node in nodes}
    members: dict[str, Member] = {}
    probes: dict[str, _Probe] = {}
    deadline = time.monotonic() + seconds
    argv = (sys.executable, "-P", "-m", probe.__name__)
    for node in nodes:
        setup = Setup(node, networks[node])
        command = Command(argv, os.environ, Secret(pickle.dumps(setup)))
        members[node] = launcher.start(Seat(node, (node,), node=node), command)
        ending.callback(_end, members[node])
    for node, member in members.items():
        try:
            made = _connected(node, member, networks[node], deadline)
        except (OSError, ValueError) as error:
            measured.problems.append(f"the node `{node}`: {error}")
        else:
            probes[node] = made
            ending.callback(made.close)  # before `_end`, since it makes the probe end
    return probes


def _connected(node: str, member: Member, network: Network, deadline: float) -> _Probe:
    """Connect to a probe that was started, or raise an error that says what to do."""
    address = member.hello(max(0.0, deadline - time.monotonic()))
    if not address:
        fate = fate_of(member, GRACE_SECONDS)
        raise ConnectionError(last_words(*fate) if fate else "the connection to it ended.")
    try:
        name = ConnectionId(PURPOSE, node)
        control = listener().connect(address, name, CONNECT_SECONDS).signed()
    except (OSError, ValueError) as error:
        why = str(error.__cause__ or error).rstrip(".")
        raise ConnectionError(
            f"this machine cannot reach it at {address}: {why}. {_cure(address, node)}"
        ) from error
    return _Probe(node, address, control, network.ports[1] if network.ports else 0)


def _end(member: Member) -> None:
    if fate_of(member, GRACE_SECONDS) is None:
        member.kill(GRACE_SECONDS)


def _measure_from_here(each: _Probe, measured: Measured) -> None:
    """Measure the round trip from this machine, and the offset of the other clock."""
    best, ahead = float("inf"), 0.0
    for _ in range(5):
        start = time.time()
        theirs = each.ask("clock")
        end = time.time()
        if end - start < best:
            best, ahead = end - start, theirs - (start + end) / 2
    measured.round_trips[each.node], measured.clocks[each.node] = best, ahead
    if abs(ahead) > CLOCK_SECONDS:
        measured.problems.append(
            f"the node `{each.node}`: its clock is {abs(ahead):.1f} s "
            f"{'ahead of' if ahead > 0 else 'behind'} this machine's, which would mix up the times "
            f"in logs. Keep both right with NTP, such as by `chrony`."
        )


def _rounds(nodes: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield all pairs of nodes in rounds, with each node in at most one pair of a round."""
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        if whole := [(one, other) for one, other in pairs if one and other]:
            yield whole
        circle[1:] = [circle[-1], *circle[1:-1]]


def _both_ways(one: _Probe, other: _Probe) -> list[tuple[_Probe, _Probe, Way]]:
    return [(one, other, _way(one, other)), (other, one, _way(other, one))]


def _way(source: _Probe, target: _Probe) -> Way:
    """Measure the way from one node to another."""
    name = f"{source.node} -> {target.node}"
    try:
        return Way(*source.ask("measure", target.ask("expect", name), name))
    except OSError as error:
        return Way(problem=str(error))


def _add(ways: Sequence[tuple[_Probe, _Probe, Way]], measured: Measured) -> None:
    for source, target, way in ways:
        if way.rate:
            times = way.round_trip, way.rate, way.mtu
            measured.rates.append(Rate(source.node, target.node, *times))
            continue
        if way.round_trip:
            what = "get large messages to"
            cure = (
                f"Small ones arrive, so something between them drops packets of {way.mtu} bytes, "
                f"their MTU. Give all interfaces and switches between them the same MTU, or theirs "
                f"a smaller one (`ip link set dev NAME mtu 1400`)."
            )
        else:
            what, cure = "reach", _cure(target.address, target.node)
        why = way.problem.rstrip(".")
        problem = f"{what} `{target.node}` at {target.address}: {why}. {cure}"
        measured.problems.append(f"the node `{source.node}` cannot {problem}")


def _cure(address: str, node: str) -> str:
    """Return what to do if nothing can connect to a node at an address."""
    with contextlib.suppress(OSError, ValueError):
        _, (host, port, *_) = read_address(address)
        if ipaddress.ip_address(host).is_loopback:
            return (
                f"Only processes of `{node}` itself can reach that address: let the node listen at "
                f"an address or an interface of its network."
            )
        return (
            f"Let its firewall pass port {port} and the others of the run, or let the node listen "
            f"at another address or interface."
        )
    return "Correct the address or the interface at which the node listens."


def _check_last_port(source: _Probe, target: _Probe, measured: Measured) -> None:
    """Try the last port of a node's range, since a firewall may pass the first ones only."""
    if not target.last or target.address.endswith(f":{target.last}"):
        return
    host = target.address.removeprefix("tcp:").rpartition(":")[0].strip("[]")
    address = target.ask("open_port", host, target.last)
    if address and (why := source.ask("reach", address)):
        measured.problems.append(
            f"the node `{source.node}` cannot reach `{target.node}` at {address}, the last port of "
            f"the run's range: {why}. Let the firewall of `{target.node}` pass the whole range."
        )
