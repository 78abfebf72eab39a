"""The network between nodes is measured, and what is wrong with it is told with a cure."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hocket.runtime.launch import cluster_launcher
from hocket.runtime.launch.launchers.loopback import Loopback
from hocket.runtime.launch.nodes import network_of
from hocket.runtime.launch.survey import ways
from hocket.runtime.launch.survey.ways import Measured, measure
from hocket.system.nodes.probe import Way
from tests import networks
from tests.networks import address_of

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@dataclass
class Said:
    """A probe that has answered already."""

    node: str
    answer: Any
    address: str = "tcp:192.0.2.1:7000"
    last: int = 7009

    def ask(self, command: str, *arguments: Any) -> Any:
        return self.answer


def test_all_ways_are_measured() -> None:
    measured = measure(cluster_launcher("loopback:3"), ["n0", "n1", "n2"], 60.0)
    assert measured.problems == []
    pairs = sorted((rate.source, rate.target) for rate in measured.rates)
    assert pairs == sorted(itertools.permutations(["n0", "n1", "n2"], 2))
    assert all(rate.rate > 1e6 and 0 < rate.round_trip < 1 for rate in measured.rates)
    assert measured.round_trips.keys() == measured.clocks.keys() == {"n0", "n1", "n2"}
    assert all(abs(ahead) < 1 for ahead in measured.clocks.values())


@pytest.mark.parametrize("count", range(8))
def test_rounds_have_each_pair_once(count: int) -> None:
    nodes = [f"n{index}" for index in range(count)]
    rounds = list(ways._rounds(nodes))
    pairs = [tuple(sorted(pair)) for each in rounds for pair in each]
    assert sorted(pairs) == sorted(itertools.combinations(nodes, 2))
    for each in rounds:
        busy = [node for pair in each for node in pair]
        assert len(busy) == len(set(busy))


def test_a_node_that_cannot_listen() -> None:
    class Lost(Loopback):
        def host(self, node: str) -> str:
            return "no-interface" if node == "n1" else "127.0.0.1"

    measured = measure(Lost("2"), ["n0", "n1"], 60.0)
    (problem,) = measured.problems
    assert problem.startswith("the node `n1`: process")
    assert "`no-interface` is no address" in problem and "Correct the address" in problem
    assert measured.round_trips.keys() == {"n0"} and measured.rates == []


def test_the_last_port_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        first = min(bound.getsockname()[1], 65_000)
    ports = first, first + 400

    def with_ports(*arguments: Any) -> Any:
        return replace(network_of(*arguments), ports=ports)

    monkeypatch.setattr(ways, "network_of", with_ports)
    assert measure(cluster_launcher("loopback:2"), ["n0", "n1"], 60.0).problems == []


def test_what_is_wrong_with_a_way() -> None:
    measured, one, other = Measured(), Said("n0", ""), Said("n1", "")
    alone = replace(other, address="tcp:127.0.1.1:7000")
    for target, way in (
        (other, Way(problem="timed out")),
        (alone, Way(problem="Connection refused")),
        (other, Way(1e-4, 0.0, 9000, "timed out")),
        (other, Way(1e-4, 1e9, 9000)),
    ):
        ways._add([(one, target, way)], measured)  # pyright: ignore[reportArgumentType]
    closed, loopback, large = measured.problems
    assert closed.startswith("the node `n0` cannot reach `n1` at tcp:192.0.2.1:7000: timed out. ")
    assert "firewall pass port 7000" in closed
    assert "Only processes of `n1` itself can reach that address" in loopback
    assert "cannot get large messages to `n1`" in large and "drops packets of 9000 bytes" in large
    assert [rate.rate for rate in measured.rates] == [1e9]


def test_a_clock_that_is_wrong() -> None:
    measured = Measured()
    ways._measure_from_here(Said("n0", time.time() - 60), measured)  # pyright: ignore[reportArgumentType]
    (problem,) = measured.problems
    assert "its clock is 60" in problem and "behind this machine's" in problem
    assert "NTP" in problem


def test_a_last_port_that_is_closed() -> None:
    measured = Measured()
    source, target = Said("n0", "timed out"), Said("n1", "tcp:192.0.2.1:7009")
    ways._check_last_port(source, target, measured)  # pyright: ignore[reportArgumentType]
    (problem,) = measured.problems
    assert "cannot reach `n1` at tcp:192.0.2.1:7009, the last port" in problem
    assert "pass the whole range" in problem


@pytest.fixture
def prefix() -> Iterator[str]:
    """Namespaces for two nodes."""
    if not networks.are_possible():
        pytest.skip("there are no network namespaces: they need root and `ip`")
    with networks.namespaces() as prefix:
        yield prefix


def test_nodes_that_reach_this_machine_and_not_each_other(prefix: str) -> None:
    networks.run("ip", "-n", f"{prefix}n1", "route", "add", "blackhole", address_of("n0"))
    measured = networks.measured(prefix)
    assert measured["round_trips"].keys() == {"n0", "n1"} and measured["rates"] == []
    there, back = sorted(measured["problems"])
    assert f"the node `n0` cannot reach `n1` at tcp:{address_of('n1')}:" in there
    assert f"the node `n1` cannot reach `n0` at tcp:{address_of('n0')}:" in back


@pytest.mark.slow
def test_a_network_that_drops_large_packets(prefix: str) -> None:
    """A switch has a smaller MTU than the machines, and does not say so."""
    assert len(networks.measured(prefix)["rates"]) == 2
    for node in ("n0", "n1"):  # by default they hand the switch packets that are cut later
        networks.run("ip", "-n", f"{prefix}{node}", "link", "set", "eth0", "gso_max_segs", "1")
    networks.run("ip", "-n", f"{prefix}bridge", "link", "set", "to-n1", "mtu", "1400")
    there, back = sorted(networks.measured(prefix)["problems"])
    assert "the node `n0` cannot get large messages to `n1`" in there
    assert "the node `n1` cannot get large messages to `n0`" in back
    assert "drops packets of 1500 bytes, their MTU" in there
