"""The collector skips what was imported, once."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from hocket.system.garbage import keep_imports

keep_imports()
kept = gc.get_freeze_count()
made = [[] for _ in range(1000)]
keep_imports()
print(kept > 0, gc.get_freeze_count() <= kept, gc.get_threshold()[0] > 700)
"""


def test_what_was_imported_is_kept_and_later_things_are_not() -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "True True True\n"
