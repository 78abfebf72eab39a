"""Replay in the network over veth: actor - node - learner, each in a network namespace.

They are skipped if the machine does not allow network namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.replay.dpdk import Place, address_of, check_rows, node, relay, rows_from

from hocket.replay import connect

pytestmark = pytest.mark.xdist_group("dpdk")  # like test_dpdk.py


def missing_for_veth() -> str:
    if not shutil.which("ip"):
        return "`ip` is not installed (apt-get install iproute2), which makes network namespaces"
    name = f"hk-{os.getpid()}-try"
    commands = (f"netns add {name}", f"-n {name} link add hk-try type veth peer name hk-try2")
    try:
        for command in commands:
            made = ip(command, check=False)
            if made.returncode:
                return f"no network namespaces with veth here: {made.stderr.strip()}"
        return ""
    finally:
        ip(f"netns del {name}", check=False)


def ip(command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=check)


@dataclass
class Wires:
    """actor - node - learner, each in a network namespace."""

    name: str

    def inside(self, who: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{self.name}-{who}")

    def show(self, who: str, interface: str) -> str:
        return ip(f"-n {self.name}-{who} link show {interface}").stdout


@pytest.fixture
def wires() -> Iterator[Wires]:
    if why := missing_for_veth():
        pytest.skip(why)
    name = f"hk{os.getpid()}"
    wires = Wires(name)
    parties = ("actor", "node", "learner")
    try:
        for who in parties:
            ip(f"netns add {name}-{who}")
        for who, number in (("actor", 1), ("learner", 3)):
            ip(f"-n {name}-node link add to-{who} type veth peer name wire netns {name}-{who}")
            ip(f"-n {name}-node link set to-{who} up")
            ip(f"-n {name}-{who} link set wire up")
            ip(f"-n {name}-{who} addr add 10.0.0.{number}/24 dev wire")
        yield wires
    finally:
        for who in parties:
            ip(f"netns del {name}-{who}", check=False)


def ports(pmd: str) -> tuple[str, ...]:
    return "--vdev", f"net_{pmd}0,iface=to-actor", "--vdev", f"net_{pmd}1,iface=to-learner"


def send_and_receive(inside: tuple[str, ...], to: tuple[str, int], text: bytes) -> bytes:
    """Send a UDP packet by the kernel, and return the answer, or b"" after a second."""
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"{NO_CHECK}; s.settimeout(1)\n"
        f"s.sendto({text!r}, {to!r})\n"
        "try: sys.stdout.buffer.write(s.recv(2000))\n"
        "except TimeoutError: pass\n"
    )
    ran = subprocess.run([*inside, "python3", "-c", program], capture_output=True, check=True)
    return ran.stdout


# Over veth the kernel leaves UDP checksums to the device, which never computes them. So send none.
NO_CHECK = "s.setsockopt(socket.SOL_SOCKET, 11, 1)"
ECHO = (
    "import socket\n"
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    f"{NO_CHECK}; s.bind(('10.0.0.3', 9999))\n"
    "print('ready', flush=True)\n"
    "while True: s.sendto(*s.recvfrom(2000))\n"
)


@pytest.mark.parametrize("pmd", ["af_packet", "af_xdp"])
def test_a_node_on_wires(place: Place, wires: Wires, pmd: str) -> None:
    serving = node(place, *ports(pmd), before=wires.inside("node"))
    relay(place, "--vdev", f"net_{pmd}0,iface=wire", before=wires.inside("learner"))
    with connect(address_of(place)) as replay:
        replay.insert(rows_from(0, 300))
        check_rows(replay.sample(256).rows)
        # The kernel finds the node, too, but what it sends is no packet of ours.
        assert send_and_receive(wires.inside("actor"), ("10.0.0.2", 7777), b"x" * 64) == b""
        assert replay.info()["dropped"] == 1
    assert "dropped 1" in serving.stop()
    assert "xdp" not in wires.show("node", "to-actor")


# Ethernet, ARP and IP frames of all lengths, filled with nonsense.
NOISE = """
import random, socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("wire", 0))
random.seed(1)
own = bytes([10, 0, 0, 2])
for i in range(4000):
    kind = random.choice([b"\\x08\\x00", b"\\x08\\x06", random.randbytes(2)])
    frame = bytearray(random.randbytes(12) + kind + random.randbytes(random.randrange(0, 200)))
    if kind == b"\\x08\\x00" and len(frame) > 42:
        frame[14], frame[20:22], frame[30:34] = 0x45, bytes(2), own
        frame[23] = random.choice([1, 17, random.randrange(256)])
        frame[16:18] = random.choice([len(frame) - 14, random.randrange(65536)]).to_bytes(2, "big")
        frame[34] = random.choice([0, 8, 30])
        frame[36:38] = (7777).to_bytes(2, "big")
        frame[38:40] = random.choice([len(frame) - 34, random.randrange(65536)]).to_bytes(2, "big")
    if kind == b"\\x08\\x06" and len(frame) > 42:
        frame[20:22], frame[38:42] = random.randrange(4).to_bytes(2, "big"), own
    s.send(bytes(frame))
"""


@pytest.mark.parametrize("pmd", ["af_packet", "af_xdp"])
def test_a_node_outlives_any_frame(place: Place, wires: Wires, pmd: str) -> None:
    serving = node(place, *ports(pmd), before=wires.inside("node"))
    relay(place, "--vdev", f"net_{pmd}0,iface=wire", before=wires.inside("learner"))
    subprocess.run([*wires.inside("actor"), "python3", "-c", NOISE], check=True)
    with connect(address_of(place)) as replay:
        replay.insert(rows_from(0, 3))
        info = replay.info()
    assert info["size"] == 3 and info["dropped"] > 0
    serving.stop()
    assert serving.process.returncode == 0


@pytest.mark.parametrize("pmd", ["af_packet", "af_xdp"])
def test_a_node_forwards_the_kernels_frames(place: Place, wires: Wires, pmd: str) -> None:
    node(place, *ports(pmd), before=wires.inside("node"))
    command = [*wires.inside("learner"), "python3", "-c", ECHO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout and echo.stdout.readline() == "ready\n"
            answer = send_and_receive(wires.inside("actor"), ("10.0.0.3", 9999), b"hello")
        finally:
            echo.kill()
    assert answer == b"hello"


def test_an_xdp_program_that_stayed_is_taken_off(place: Place, wires: Wires) -> None:
    killed = node(place, *ports("af_xdp"), before=wires.inside("node"))
    killed.process.kill()
    killed.process.wait()
    again = node(place, *ports("af_xdp"), before=wires.inside("node"))
    assert "xdp" in wires.show("node", "to-actor")
    again.stop()
    assert again.process.returncode == 0
    assert "xdp" not in wires.show("node", "to-actor")
    assert "xdp" not in wires.show("node", "to-learner")
