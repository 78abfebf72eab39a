"""The transport between devices of one process.

The sender starts the copy, so that the copy overlaps with the work of both threads.
"""

from __future__ import annotations

from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.links import Link
from hocket.runtime.channels.transports.same_device import Queue, SameDevice


class DeviceToDevice(SameDevice):
    """The transport in which JAX copies arrays to the devices where the receiver wants them."""

    preference = 10.0

    def why_not(self, link: Link, ends: Ends) -> str:
        if not ends.one_process:
            return "it is for threads of one process, and these are two processes."
        return ""

    def listen(self, link: Link, here: Here) -> Queue:
        return Queue(link.slots, link.delay, here.homes)


TRANSPORT = DeviceToDevice()
