"""Become another program, which the system kills when the process that started it ends.

    python -I -S tethered.py PARENT PROGRAM ARGUMENT ...

PARENT is the process id of that process, which must start this one in a thread that lives as long
as the program: the system counts the end of that thread as the parent's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    """Tie this process to its parent, then replace it with the program."""
    parent, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == int(parent):  # else the parent has ended before it could be asked for
        os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
