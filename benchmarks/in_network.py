"""Measure replay in the network: kernel sockets against DPDK, an end host against the middle.

    cmake -S src/hocket/replay/store/native/dpdk -B build/dpdk && cmake --build build/dpdk
    python benchmarks/in_network.py                     # as root: it makes network namespaces
    python benchmarks/in_network.py --rounds 1 --only gates

Three network namespaces are joined by veth: actor - node - learner. Native programs run in them.
One sends one request after the other, and a value is the median microseconds of a round trip (p50).
The three comparisons are those of Furukawa and Matsutani, "Accelerating Distributed Deep
Reinforcement Learning by In-Network Experience Sampling" (PDP 2022), on different machines:

  bypass       the kernel against DPDK, to a plain store next door      (they: 32.7-58.9 % less)
  middle       DPDK replay at an end host, behind a node that forwards,
               against replay in that node                              (they: 11.7-28.1 % less)
  prioritized  the same, drawing by priority                            (they: 21.9-29.1 % less)

`less` is the reduction of the latency against that of `against`, in percent; below 0 it is longer.
The parties take turns, each with processes of its own, and the quieter half of the rounds counts.
`others` is the number of cores that the rest of the machine used meanwhile.

How to read it. Most of the gain of bypass comes from not sleeping: it is large beside a kernel
socket that blocks, and much smaller beside one that spins. In bulk, bypass sends a packet at a
time, while the kernel's segmentation offload sends 64 KB across veth as one. So a sample of 32 KB
by AF_XDP is faster than by TCP that blocks, but slower than by TCP that spins; a sample of 903 KB
by AF_XDP or memif is slower than by TCP with offload, blocking or spinning. AF_XDP copies here,
because veth has no other mode. memif is not a network: it is bypass without any kernel.

All parties share the machine's cores. `cores` is how many this process may use, and `parties` how
many programs run on them (`against_parties` for the other side of a ratio): two, or three if a node
of ours forwards to an end host; the kernel forwards without a program. With fewer cores than
parties, polling, which is bounded (`poll_us`), yields and then sleeps, so the scheduler is part of
the figure. Trust `middle` and `prioritized` only with a core for each party.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from split import Meter, quieter_half, tell

BUILD = Path(__file__).parents[1] / "build" / "dpdk"
CART, KILO = "obs:uint8:44", "row:uint8:1024"
OPERATIONS = {
    # schema, the request to the load generator, rows to begin with
    "insert 1 of 44 B": (CART, "insert 1", 4096),
    "sample 32 of 44 B": (CART, "sample 32", 4096),
    "update 32": (CART, "update 32", 4096),
    "32 KB sample": (KILO, "sample 32", 4096),
    "903 KB sample": (KILO, "sample 882", 4096),
    "64 B round trip": (KILO, "ping 64", 0),
}
SECONDS = 0.5
QUIET = 0.15
"""A measurement is repeated if others use more cores than this."""
PAPER = {"bypass": "32.7-58.9", "middle": "11.7-28.1", "prioritized": "21.9-29.1"}
GATES = {
    "64 B round trip": {"memif": 2, "af_xdp": 8},
    "32 KB sample": {"memif": 30, "af_xdp": 80},
}
POLL_US = 2000
"""How long parties poll, or spin, with nothing to do. Replies arrive sooner than that."""

Times = dict[str, float]


@dataclass(frozen=True)
class Variant:
    """A way to reach a replay: by tcp, udp or a DPDK driver, to a server at some distance."""

    name: str
    carrier: str
    spins: bool = True
    offload: bool = True
    where: str = "next door"
    sampler: str = "uniform"

    @property
    def parties(self) -> int:
        """The number of programs: client, server, and a node of ours if one is between them."""
        forwards = self.where == "at an end host" and self.carrier not in ("tcp", "udp")
        return 3 if forwards else 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--patience", type=float, default=0.0,
        help="repeat a measurement for up to these seconds while others use the machine",
    )  # fmt: skip
    parser.add_argument("--only", choices=("gates", *PAPER), help="run only this comparison")
    options = parser.parse_args()
    check_machine()
    for name in (options.only,) if options.only else ("gates", *PAPER):
        {"gates": gates, "bypass": bypass, "middle": middle, "prioritized": prioritized}[name](
            options.rounds, options.patience
        )


def check_machine() -> None:
    if not (BUILD / "hocket-replay-load").exists():
        sys.exit(f"there are no programs in {BUILD}: build them as {__file__} says.")
    if os.getuid() or not shutil.which("ip"):
        sys.exit("making network namespaces takes root and `ip` (apt-get install iproute2).")


# The figures


def gates(rounds: int, patience: float) -> None:
    """Measure DPDK alone, against the latencies that it has to reach."""
    variants = [Variant(pmd, pmd) for pmd in ("memif", "af_xdp", "af_packet")]
    for operation, limits in GATES.items():
        times = take_turns(variants, operation, rounds, patience)
        for name, about in times.items():
            more = {"gate": limits[name]} if name in limits else {}
            say(f"{operation}: {name}", about, **more)


def bypass(rounds: int, patience: float) -> None:
    kernel = [
        Variant("TCP, blocking", "tcp", spins=False),
        Variant("TCP, spinning", "tcp"),
        Variant("TCP, spinning, no offload", "tcp", offload=False),
        Variant("UDP, blocking", "udp", spins=False),
        Variant("UDP, spinning", "udp"),
        Variant("UDP, spinning, no offload", "udp", offload=False),
    ]
    dpdk = [Variant(pmd, pmd) for pmd in ("af_packet", "af_xdp", "memif")]
    against = ("TCP, blocking", "TCP, spinning", "UDP, blocking", "UDP, spinning")
    for operation in ("insert 1 of 44 B", "sample 32 of 44 B", "32 KB sample", "903 KB sample"):
        times = take_turns(kernel + dpdk, operation, rounds, patience)
        for variant in kernel:
            say(f"bypass, {operation}: {variant.name}", times[variant.name])
        for variant in dpdk:
            for other in against:
                compare("bypass", operation, variant.name, other, times)


def middle(
    rounds: int, patience: float, comparison: str = "middle", sampler: str = "uniform"
) -> None:
    operations = ("insert 1 of 44 B", "sample 32 of 44 B")
    for operation in (*operations, *(["update 32"] if sampler == "prioritized" else [])):
        carriers = {"tcp": "TCP, spinning", "af_packet": "", "af_xdp": "", "memif": ""}
        variants = [
            Variant(f"{label or carrier} {where}", carrier, where=where, sampler=sampler)
            for carrier, label in carriers.items()
            for where in ("at an end host", "in the middle")
        ]
        times = take_turns(variants, operation, rounds, patience)
        for end, mid in zip(variants[::2], variants[1::2], strict=True):
            say(f"{comparison}, {operation}: {end.name}", times[end.name])
            compare(comparison, operation, mid.name, end.name, times)


def prioritized(rounds: int, patience: float) -> None:
    middle(rounds, patience, "prioritized", "prioritized")


def take_turns(
    variants: Sequence[Variant], operation: str, rounds: int, patience: float
) -> dict[str, list[Times]]:
    """Measure all variants in turn; return the figures of the quieter rounds by variant."""
    schema, line, rows = OPERATIONS[operation]
    measured: list[dict[str, Times]] = []
    for _ in range(rounds):
        by_variant = {}
        for variant in variants:
            with served(variant, schema) as load:
                for _ in range(0, rows, 64):
                    load.ask("insert 64 1")
                load.ask(f"{line} 50")
                times = in_quiet(load, f"{line} {SECONDS}s", patience)
                by_variant[variant.name] = {**times, "parties": variant.parties}
        measured.append(by_variant)
    quiet = quieter_half(measured, lambda each: max(times["others"] for times in each.values()))
    return {variant.name: [each[variant.name] for each in quiet] for variant in variants}


def in_quiet(load: Load, line: str, patience: float) -> Times:
    """Repeat a measurement until the machine is quiet; return the quietest one."""
    end = time.monotonic() + patience
    best: Times = {}
    while not best or (best["others"] > QUIET and time.monotonic() < end):
        meter = Meter()
        times = load.ask(line)
        others = meter.cores()[1]
        if not best or others < best["others"]:
            best = {**times, "others": others}
    return best


def middle_of(about: Sequence[Times], what: str) -> float:
    return statistics.median(each[what] for each in about)


def say(name: str, about: Sequence[Times], **more: object) -> None:
    tell(
        name, round(middle_of(about, "p50"), 2), "us", p99=round(middle_of(about, "p99"), 2),
        **more, cores=len(os.sched_getaffinity(0)), parties=int(about[0]["parties"]),
        poll_us=POLL_US,
        others=round(max(each["others"] for each in about), 2),
    )  # fmt: skip


def compare(
    comparison: str, operation: str, name: str, against: str, times: dict[str, list[Times]]
) -> None:
    ratios = [b["p50"] / a["p50"] for a, b in zip(times[name], times[against], strict=True)]
    ratio = statistics.median(ratios)
    say(
        f"{comparison}, {operation}: {name}", times[name], ratio=round(ratio, 2), against=against,
        spread=[round(min(ratios), 2), round(max(ratios), 2)],
        less=round(100 * (1 - 1 / ratio), 1), paper=PAPER[comparison],
        against_parties=int(times[against][0]["parties"]),
    )  # fmt: skip


# The parties


@dataclass
class Load:
    process: subprocess.Popen[str]

    def ask(self, line: str) -> Times:
        assert self.process.stdin and self.process.stdout
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{' '.join(map(str, self.process.args))} has ended.")  # type: ignore[arg-type]
        return json.loads(answer)


@dataclass
class Wires:
    """The namespaces actor - node - learner. If bridged, the kernel forwards in the node."""

    name: str
    bridged: bool
    offload: bool = True
    made: list[str] = field(default_factory=list)

    def __enter__(self) -> Wires:
        for who in ("actor", "node", "learner"):
            ip(f"netns add {self.name}-{who}")
            self.made.append(f"{self.name}-{who}")
        if self.bridged:
            ip(f"-n {self.name}-node link add bridge type bridge")
            ip(f"-n {self.name}-node addr add 10.0.0.2/24 dev bridge")
            ip(f"-n {self.name}-node link set bridge up")
        for who, number in (("actor", 1), ("learner", 3)):
            pair = f"{who} type veth peer name wire netns {self.name}-{who}"
            ip(f"-n {self.name}-node link add {pair}")
            ip(f"-n {self.name}-{who} addr add 10.0.0.{number}/24 dev wire")
            ip(f"-n {self.name}-{who} link set wire up")
            ip(f"-n {self.name}-node link set {who} up")
            if self.bridged:
                ip(f"-n {self.name}-node link set {who} master bridge")
            if not self.offload:
                self.switch_off("node", who)
                self.switch_off(who, "wire")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.made:
            ip(f"netns del {name}")

    def switch_off(self, who: str, interface: str) -> None:
        command = [*self.inside(who), "ethtool", "-K", interface, "tso", "off", "gso", "off"]
        subprocess.run([*command, "gro", "off"], check=True, capture_output=True)

    def inside(self, who: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.name}-{who}"]


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


@contextmanager
def served(variant: Variant, schema: str) -> Iterator[Load]:
    """Start the servers of a variant, and a load generator that sends requests to them."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hk"))
        kernel = variant.carrier in ("tcp", "udp")
        wires = stack.enter_context(Wires(f"hk{os.getpid()}", kernel, variant.offload))
        start = kernel_parties if kernel else dpdk_parties
        servers, client = start(variant, schema, wires, folder)
        for command in servers:
            process = stack.enter_context(running(command))
            assert process.stdout
            if "serving" not in process.stdout.readline():
                sys.exit(f"{' '.join(command)} did not start.")
        yield Load(stack.enter_context(running(client)))


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    # stderr is dropped: libxdp prints much that does not matter here.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def program(name: str) -> str:
    return str(BUILD / f"hocket-replay-{name}")


def table(variant: Variant, schema: str) -> list[str]:
    return ["--schema", schema, "--capacity", "8192", "--sampler", variant.sampler]


def kernel_parties(
    variant: Variant, schema: str, wires: Wires, _: str
) -> tuple[list[list[str]], list[str]]:
    who, address = "node", "10.0.0.2:7777"
    if variant.where == "at an end host":
        who, address = "learner", "10.0.0.3:7777"
    spin = ["--spin-us", str(POLL_US if variant.spins else 0)]
    plain = [] if variant.offload or variant.carrier == "tcp" else ["--plain"]
    udp = ["--udp"] if variant.carrier == "udp" else []
    server = [program("kernel"), "--address", address, *spin, *udp, *plain]
    load = [program("load"), "--carrier", variant.carrier, "--server", address, *spin, *plain]
    return (
        [[*wires.inside(who), *server, *table(variant, schema)]],
        [*wires.inside("actor"), *load, "--schema", schema],
    )


def dpdk_parties(
    variant: Variant, schema: str, wires: Wires, folder: str
) -> tuple[list[list[str]], list[str]]:
    def ports(who: str, *names: str) -> list[str]:
        """Return the flags for ports on these interfaces, or on memif sockets of these names."""
        flags = []
        for i, name in enumerate(names):
            about = f"iface={name}"
            if variant.carrier == "memif":
                role = "server" if who == "node" else "client"
                socket = name if who == "node" else who
                about = f"role={role},socket={folder}/{socket},socket-abstract=no"
            flags += ["--vdev", f"net_{variant.carrier}{i},{about}"]
        return flags

    poll = ["--poll-us", str(POLL_US)]
    address, end = "10.0.0.2:7777", "10.0.0.13:7777"  # the kernel has 10.0.0.3
    at_end = variant.where == "at an end host"

    def node(who: str, address: str, *names: str) -> list[str]:
        command = [*wires.inside(who), program("node"), "--address", address, *poll]
        return [*command, *table(variant, schema), *ports(who, *names)]

    # In the middle a node has two ports even if it forwards nothing here.
    one = variant.where == "next door"
    servers = [node("node", address, "actor", *([] if one else ["learner"]))]
    if at_end:
        servers.append(node("learner", end, "wire"))
    load = [program("load"), "--server", end if at_end else address, "--address", "10.0.0.11"]
    return servers, [
        *wires.inside("actor"), *load, "--schema", schema, *poll, *ports("actor", "wire")
    ]  # fmt: skip


if __name__ == "__main__":
    main()
