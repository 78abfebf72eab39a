"""A program that describes the node on which it runs, for the survey of a cluster.

    python -m hocket.cluster.node_survey SECONDS [slices]

It prints the result of `survey` as one line of JSON, and with it the versions and the free memory.
With `slices`, it also tries how each device can be cut. After SECONDS it is ended, so that nothing
is left on a node where a driver hangs.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from hocket.cluster.survey import survey
from hocket.system.as_child import say_hello
from hocket.system.cores import keep_to_cores
from hocket.system.nodes.resources import free_bytes
from hocket.system.nodes.versions import versions


def main() -> None:
    """Print the description of this machine."""
    signal.alarm(int(sys.argv[1]))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it needs no device's memory
    keep_to_cores()
    about = survey(slices="slices" in sys.argv[2:], host=True)
    say_hello(json.dumps({**about, "versions": versions(), "free": free_bytes()}))


if __name__ == "__main__":
    main()
