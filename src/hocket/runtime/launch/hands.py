"""One instance at work, from the side of the run: who runs it, how it is told, how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hocket.runtime.launch import Member
from hocket.runtime.launch.control import Control
from hocket.runtime.launch.watch import GRACE_SECONDS
from hocket.system.children import last_words


@dataclass
class Hand:
    """One instance at work: who runs it, and how it is told."""

    name: str
    member: Member
    control: Control

    @property
    def place(self) -> str:
        return self.name.rpartition("/")[0]


def epitaph(name: str, member: Member) -> str:
    """How an instance ended that said nothing."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (ended := member.poll()) is None:
        if time.monotonic() > deadline:
            return f"the instance `{name}` stopped answering."
        time.sleep(0.01)
    return f"the instance `{name}` failed: {last_words(*ended)}"


def has_ended(member: Member, deadline: float) -> bool:
    """Whether a member has ended by then; or then by force, where that can be."""
    while member.poll() is None:
        if time.monotonic() > deadline:
            return member.kill(GRACE_SECONDS)
        time.sleep(0.002)
    return True
