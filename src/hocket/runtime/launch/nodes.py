"""The run's side of the stewards, which start the instances on the nodes of a cluster.

The launcher starts a steward (`hocket.system.steward`) on each node. One authenticated connection
to it carries the messages of all instances there. To the run, each instance looks like a process of
this machine, with a member and a control connection of its own.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hocket.errors import PlanError
from hocket.runtime.launch import ClusterLauncher, Fate, Launcher, Member, NodeLost
from hocket.runtime.launch.watch import InstanceError, fate_of
from hocket.system.children import print_line
from hocket.system.messages import MessageSocket
from hocket.system.network import Network, get_network
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import listener
from hocket.system.network.plain import loads
from hocket.system.nodes.versions import differences, versions
from hocket.system.signals import SUSPENSION
from hocket.system.steward import BEAT_SECONDS, PURPOSE, Order, Silence, in_parts

LEASE_SECONDS = 60.0
"""Seconds without a sign of life after which a node counts as lost, and the run ends."""
LEAST_LEASE_SECONDS = 2 * BEAT_SECONDS
"""The shortest lease. A shorter one could end between two signs of life."""
REPORTS = {"part", "said", "hung_up", "unreachable", "ended", "line"}
"""The messages of a steward about an instance, each a method of `RemoteInstance`."""
MAX_LINES = 10_000
"""The most lines of a node that wait to be printed. Further ones are left out."""
END_SECONDS = 1.0
"""Seconds to wait for the end of a steward that has hung up, to tell how it ended."""


def check_lease(seconds: float) -> None:
    """Refuse a lease that would end although there are signs of life."""
    if not seconds >= LEAST_LEASE_SECONDS:
        raise ValueError(
            f"the lease must be at least {LEAST_LEASE_SECONDS:g} seconds, because a node gives a "
            f"sign of life every {BEAT_SECONDS:g} s: found {seconds:g}."
        )


def network_of(launcher: Launcher, node: str) -> Network:
    """Return the network in which the processes of a node meet the others of the run."""
    return replace(get_network(), host=cast(ClusterLauncher, launcher).host(node))


def connect_to_steward(node: str, address: str, seconds: float) -> MessageSocket:
    """Connect to the steward of a node, which proves that it knows the secret of the run.

    Refuse a node whose versions differ from those of this machine.
    """
    connection = listener().connect(address, ConnectionId(PURPOSE, node), seconds).signed()
    try:
        if wrong := differences(versions(), _versions_of(connection, seconds)):
            raise PlanError("\n".join(f"the node `{node}`: {problem}" for problem in wrong))
    except BaseException:
        connection.close()
        raise
    return connection


def _versions_of(connection: MessageSocket, seconds: float) -> dict[str, str]:
    """Return the versions that a steward tells first."""
    late, deadline = threading.Timer(seconds, connection.close), time.monotonic() + seconds
    late.start()
    try:
        if isinstance(told := loads(connection.read_bytes()), dict):
            return told
        raise TypeError(f"found a {type(told).__name__}")
    except EOFError:
        is_late = time.monotonic() >= deadline
        why = f"has told no versions within {seconds:g} s" if is_late else "has hung up"
        raise ConnectionError(f"its steward {why}") from None
    except Exception as error:
        raise ConnectionError(f"its steward told something else than versions: {error}") from error
    finally:
        late.cancel()


class Node:
    """A node of a running plan: its steward, and the instances that the steward has started."""

    def __init__(
        self, name: str, steward: Member, run: MessageSocket, lease: float,
        logs: Path | None = None,
    ) -> None:  # fmt: skip
        self.name, self.steward, self.logs = name, steward, logs
        self._run, self._lease, self._silence = run, lease, Silence()
        self._instances: dict[str, RemoteInstance] = {}
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[tuple[str, str, bool] | None] = queue.SimpleQueue()
        self._printing = threading.Thread(target=self._print, daemon=True)
        self.lost = ""
        """The reason why the node is lost; "" while it is not."""
        self.has_hung_up = threading.Event()
        """Set if nothing more comes from the node, which is about to be lost."""
        self._losing = threading.Lock()
        SUSPENSION.add(self._allow_silence)
        for target in (self._listen, self._beat, self._keep_lease):
            threading.Thread(target=target, daemon=True).start()
        self._printing.start()

    def start(self, order: Order) -> RemoteInstance:
        """Have the steward start an instance."""
        instance = self._instances[order.name] = RemoteInstance(order.name, self)
        self.tell("start", order)
        return instance

    def tell(self, *message: Any) -> None:
        """Send the steward a message. If it is gone, its instances are reported as lost."""
        with contextlib.suppress(OSError):
            self._run.write(message)

    def answer(self) -> Any:
        """Return the steward's next answer, waiting for it. Raise if the node is lost."""
        answer = self._answers.get()
        if self.lost:
            raise InstanceError(f"the node `{self.name}` is lost, because {self.lost}.")
        return answer

    def close(self) -> None:
        """Hang up, which makes the steward end the instances that are left, and itself."""
        SUSPENSION.discard(self._allow_silence)
        self._lose("the run has ended")
        self._lines.put(None)
        self._printing.join(END_SECONDS)

    def take_line(self, instance: str, text: str, is_error: bool) -> None:
        """Have a line of an instance printed. Never wait, even if nobody reads what is printed."""
        if self._lines.qsize() < MAX_LINES:
            self._lines.put((instance, text, is_error))

    def _allow_silence(self, allowed: bool) -> None:
        """Tell the steward that this process is about to be suspended, or that it goes on."""
        self.tell("allow_silence", allowed)

    def _listen(self) -> None:
        try:
            while True:
                message = loads(self._run.read_bytes())
                self._silence.heard()
                self._take(*message)
        except EOFError:
            pass
        except Exception as error:  # noqa: BLE001 (whatever it is, the run must not wait for more)
            problem = f"{type(error).__name__}: {error}"
            self._lose(f"its steward sent what this run cannot read ({problem})")
        self.has_hung_up.set()
        fate = fate_of(self.steward, END_SECONDS) or Fate("has closed the connection")
        self._lose(f"its steward ended: {fate.how}", fate.stderr)

    def _take(self, what: str, *content: Any) -> None:
        """Take a message of the steward."""
        if what == "answer":
            (answer,) = content
            self._answers.put(answer)
        elif what in REPORTS:
            name, *about = content
            getattr(self._instances[name], what)(*about)
        elif what != "beat":
            raise ValueError(f"no steward reports {what!r}")

    # In a thread, because Ctrl-S in the terminal must not keep this process from hearing the node.
    def _print(self) -> None:
        """Print the lines of the node's instances with their names, and keep them in their logs."""
        while line := self._lines.get():
            instance, text, is_error = line
            with contextlib.suppress(ValueError, OSError):  # such as a full disk
                if self.logs is not None:
                    self.logs.mkdir(parents=True, exist_ok=True)
                    path = self.logs / f"{instance.replace('/', '-')}.log"
                    with path.open("a", encoding="utf-8") as log:
                        log.write(text)
            print_line(f"[{instance} on {self.name}] {text}", is_error)

    # Two threads, because `tell` waits while the steward reads nothing, as when it is frozen.
    def _beat(self) -> None:
        while not self.lost:
            self.tell("beat")
            time.sleep(BEAT_SECONDS)

    def _keep_lease(self) -> None:
        while not self.lost and self._silence.seconds() < self._lease:
            time.sleep(BEAT_SECONDS)
        self._lose(f"nothing was heard from it for {self._lease:g} s")

    def _lose(self, why: str, stderr: str = "") -> None:
        """End every wait for this node: its instances count as ended, and hang up."""
        with self._losing:
            if self.lost:
                return
            self.lost = why
        self._run.close()
        self._answers.put(None)
        for instance in list(self._instances.values()):
            how = f"its node `{self.name}` is lost, because {why}"
            instance.lose(NodeLost(how, stderr))


class RemoteInstance:
    """An instance on another node: its `Member`, and the run's end of its control connection."""

    def __init__(self, name: str, node: Node) -> None:
        self.name, self._node = name, node
        self._fate: Fate | None = None
        self._has_ended = threading.Event()
        self._incoming: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._parts: list[bytes] = []

    def hello(self, seconds: float) -> str:
        raise AssertionError("the steward connects to its workers")

    def poll(self) -> Fate | None:
        if self._fate is None and self._node.has_hung_up.is_set():
            self._has_ended.wait(2 * END_SECONDS)  # it is lost as soon as it is known why
        return self._fate

    def kill(self, seconds: float) -> bool:
        """Have the steward kill the instance. If the node is lost, that is never certain."""
        self._node.tell("kill", self.name)
        return self._has_ended.wait(seconds) and not self._node.lost

    def write(self, message: Any) -> None:
        for part in in_parts("write", self.name, pickle.dumps(message, protocol=5)):
            self._node.tell(*part)

    def give_memory(self) -> None:
        """Have the steward give the instance the memory that the instances of its node share."""
        self._node.tell("give_memory", self.name)

    def read(self) -> Any:
        if (message := self._incoming.get()) is None:
            self._incoming.put(None)  # every later read ends, too
            raise EOFError
        return loads(message)

    def close(self) -> None:
        self._node.tell("hang_up", self.name)

    def lose(self, fate: Fate) -> None:
        """Count the instance as ended, though it may still run on a node that cannot be reached."""
        self._fate = self._fate or fate
        self._has_ended.set()
        self._incoming.put(None)

    # The messages of the steward about this instance:

    def part(self, message: bytes) -> None:
        self._parts.append(message)

    def said(self, message: bytes) -> None:
        self._incoming.put(b"".join([*self._parts, message]))
        self._parts.clear()

    def hung_up(self) -> None:
        self._incoming.put(None)

    def unreachable(self, why: str) -> None:
        self.lose(Fate(f"it could not be reached on `{self._node.name}`: {why}"))

    def ended(self, how: str, stderr: str) -> None:
        self._fate = self._fate or Fate(f"{how} on `{self._node.name}`", stderr)
        self._has_ended.set()

    def line(self, text: str, is_error: bool) -> None:
        self._node.take_line(self.name, text, is_error)
