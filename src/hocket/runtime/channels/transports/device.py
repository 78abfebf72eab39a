"""Between devices of one process: the sender starts the copy, so that it overlaps what follows."""

from __future__ import annotations

from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.links import Link
from hocket.runtime.channels.transports.same_device import Queue, SameDevice


class DeviceToDevice(SameDevice):
    """Puts every array where its reader wants it, without a way through the host."""

    preference = 10.0

    def why_not(self, link: Link, ends: Ends) -> str:
        if not ends.one_process:
            return "that is between threads of one process, and these are two processes."
        return ""

    def listen(self, link: Link, here: Here) -> Queue:
        return Queue(link.slots, link.delay, here.homes)


TRANSPORT = DeviceToDevice()
