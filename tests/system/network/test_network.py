"""The network of a process: what it binds, which ports it uses, and its secret."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import traceback

import pytest

from hocket.runtime.launch import Command
from hocket.system.network import Network, Secret, address_of, bind, read_address
from hocket.system.network.greeting import ConnectionId, Steps, greet
from hocket.system.steward import Setup


def hand_over(steps: Steps, opening: bytes) -> None:
    """Give a greeting the other side's opening."""
    next(steps)
    steps.send(opening)


def test_the_secret_is_never_shown() -> None:
    network = Network(secret=b"0123456789abcdef")
    setup = Setup("n0", 60.0, network)
    command = Command(stdin=Secret(pickle.dumps(setup)), env={"TOKEN": "0123456789abcdef"})
    for shown in (network, setup, command, network.secret, command.stdin):
        assert "0123456789abcdef" not in f"{shown} {shown!r}"
    with pytest.raises(ConnectionError) as error:
        hand_over(greet(network.secret, ConnectionId("link", "1")), b"x" * 12)
    told = traceback.TracebackException.from_exception(error.value, capture_locals=True)
    assert "0123456789abcdef" not in "".join(told.format())
    assert pickle.loads(pickle.dumps(network)) == network
    assert Network().secret != Network().secret and len(Network().secret) == 32


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 16 bytes, found 5"):
        Network(secret=b"short")
    with pytest.raises(ValueError, match="a first and a last port from 1 to 65535"):
        Network(ports=(9000, 8000))
    for everything in ("0.0.0.0", "::"):
        with pytest.raises(OSError, match="stands for all interfaces"):
            bind(Network(everything))
    with pytest.raises(OSError, match=r"`no-such.invalid` is no address, no host .*\blo\b"):
        bind(Network("no-such.invalid"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "lo", "::1"])
def test_hosts_by_address_name_and_interface(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    bound = bind(Network(host))
    bound.listen(1)
    address = address_of(bound)
    assert address.startswith(("tcp:127.0.0.1:", "tcp:[::1]:"))
    family, where = read_address(address)
    with bound, socket.socket(family) as connecting:
        connecting.connect(where)


def test_a_range_of_ports() -> None:
    first = bind(Network())
    port = first.getsockname()[1]
    with first:
        first.listen(1)
        second = bind(Network(ports=(port, min(port + 20, 65535))))
        with second:
            assert port < second.getsockname()[1] <= port + 20
        with pytest.raises(OSError, match=rf"cannot listen at 127.0.0.1 with a port from {port} t"):
            bind(Network(ports=(port, port)))


@pytest.mark.parametrize("text", ["", "127.0.0.1:70", "unix:/tmp/x", "tcp::70", "tcp:host:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no address: it must be like `tcp:127"):
        read_address(text)


def test_it_is_set_once() -> None:
    code = (
        "from hocket.system.network import *\n"
        "mine = Network(); set_network(mine); set_network(mine)\n"
        "assert get_network() is mine\n"
        "try: set_network(Network())\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "already has another network" in done.stdout


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trying:
            trying.bind(("::1", 0))
    except OSError:
        return False
    return True
