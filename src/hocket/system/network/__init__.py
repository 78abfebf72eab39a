"""Connections to other processes of a run: who may connect, and what is carried.

__init__.py    the network of this process: the address it binds, its ports, the secret of the run
refusals.py    counts the connections that were refused, and why
greeting.py    the greeting, in which both sides of a connection prove that they know the secret
greeter.py     carries out greetings over sockets, in one thread
listener.py    accepts and opens connections
signed.py      messages whose every byte is authenticated: for commands
stream.py      messages of one size, without headers: for the arrays of a link
plain.py       reads data of another machine, and refuses whatever could run code
local.py       Unix sockets instead of TCP: on one machine, between processes of one user
rendezvous.py  an exchange of messages within a group of processes before they start work

Nothing is encrypted. An eavesdropper can read everything but the secret, and can change the bytes
of a stream, though not of signed messages.
"""

from __future__ import annotations

import fcntl
import ipaddress
import secrets
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET_BYTES = 32
"""The number of bytes of a new secret. A secret of one's own has at least half as many."""
_SIOCGIFADDR = 0x8915


class Secret(bytes):
    """Bytes that nobody may see, so they are not shown where errors and locals are printed."""

    def __repr__(self) -> str:
        return f"<secret of {len(self)} bytes>"

    __str__ = __repr__


@dataclass(frozen=True)
class Network:
    """The address, ports and secret with which a process meets the others of its run.

        set_network(Network("eth0", ports=(7000, 7099), secret=secret))

    Without `set_network`, a process listens on the loopback interface, and has a secret that no
    other process knows.
    """

    host: str = "127.0.0.1"
    """The address to bind: an IPv4 or IPv6 address, a host name, or the name of an interface."""
    ports: tuple[int, int] | None = None
    """The first and the last port that may be used; None for any free port."""
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)
    """The secret of the run, which all of its processes know, and nobody else."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", Secret(self.secret))
        if len(self.secret) < SECRET_BYTES // 2:
            raise ValueError(
                f"the secret of a run needs at least {SECRET_BYTES // 2} bytes, found "
                f"{len(self.secret)}: make one with `secrets.token_bytes({SECRET_BYTES})`."
            )
        if self.ports is not None and not 0 < self.ports[0] <= self.ports[1] < 1 << 16:
            raise ValueError(
                f"ports must be a first and a last port from 1 to 65535, found {self.ports}."
            )


_network: list[Network] = []


def set_network(network: Network) -> None:
    """Set the network of this process. Do this once, before it listens or connects."""
    if _network and _network[0] != network:
        raise ValueError(
            "this process already has another network: set it once, before anything listens or "
            "connects."
        )
    _network[:] = [network]


def get_network() -> Network:
    """Return the network of this process."""
    if not _network:
        _network.append(Network())
    return _network[0]


def bind(network: Network) -> socket.socket:
    """Return a socket that is bound to the address of a network, and to one of its ports."""
    family, address = _resolve(network.host, 0)
    first, last = network.ports or (0, 0)
    for port in range(first, last + 1):
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            if port:  # a port of a range can be used again as soon as its last user has ended
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((address[0], port, *address[2:]))
            return bound
        except OSError as error:
            bound.close()
            if port == last:
                ports = f" with a port from {first} to {last}" if last else ""
                raise OSError(f"cannot listen at {network.host}{ports}: {error}") from error
    raise AssertionError


def address_of(bound: socket.socket) -> str:
    """Return the address of a bound socket as text: `tcp:127.0.0.1:7000` or `tcp:[::1]:7000`."""
    flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    host, port = socket.getnameinfo(bound.getsockname(), flags)
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"


def read_address(address: str) -> tuple[socket.AddressFamily, Any]:
    """Return the family of an address from `address_of`, and the address for `connect`."""
    scheme, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not port.isdecimal():
        raise ValueError(f"{address[:200]!r} is no address: it must be like `tcp:127.0.0.1:7000`.")
    return _resolve(host.removeprefix("[").removesuffix("]"), int(port))


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the family and the address of a host name, an address or an interface."""
    host = _address_of_interface(host) or host
    with suppress(ValueError):
        if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
            raise OSError(
                f"`{host}` stands for all interfaces of this machine: name one address or "
                f"interface, so that nothing listens on the others."
            )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise OSError(
            f"`{host}` is no address, no host that this machine knows, and none of its interfaces "
            f"({known}): {error.strerror}"
        ) from error
    return family, address


def _address_of_interface(name: str) -> str:
    """Return the address of an interface, IPv4 if it has one; "" if there is no such interface."""
    if name not in {known for _, known in socket.if_nameindex()}:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        request = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        digits, _, _, scope, _, interface = line.split()
        if interface == name:
            address = str(ipaddress.IPv6Address(int(digits, 16)))
            return f"{address}%{name}" if scope == "20" else address  # 20: local to the link
    raise OSError(f"the interface `{name}` has no address.")
