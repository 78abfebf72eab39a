"""A child process is heard, watched and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hocket.system.children import LAST_BYTES, Child, end_all, last_words


def child(code: str, stdin: bytes = b"", **env: str) -> Child:
    return Child((sys.executable, "-c", code), {**os.environ, **env}, stdin)


def ended(of: Child) -> tuple[str, str]:
    assert of.wait(60)
    end = of.poll()
    assert end is not None
    return end


def output(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def test_its_first_line_is_kept_back_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    speaks = child("import sys; print(sys.stdin.read()); print('more')", b"heard")
    assert speaks.first_line(60) == "heard" == speaks.first_line(60)
    assert ended(speaks) == (f"process {speaks.pid} ended with code 0", "")
    assert capsys.readouterr().out == "more\n"


def test_its_last_words_are_kept() -> None:
    fails = child("import sys; [print('x' * 99, file=sys.stderr) for _ in range(999)]; sys.exit(7)")
    how, last = ended(fails)
    assert how == f"process {fails.pid} ended with code 7"
    assert LAST_BYTES - 200 < len(last) <= LAST_BYTES
    assert fails.first_line(60) == ""  # it ended without any output


def test_one_that_says_nothing_is_told_from_one_that_has_ended() -> None:
    silent = child("import time; time.sleep(60)")
    with pytest.raises(TimeoutError, match=r"said nothing for 0\.1 s"):
        silent.first_line(0.1)
    assert silent.poll() is None
    assert silent.kill(60)
    assert ended(silent)[0] == f"process {silent.pid} was killed by SIGKILL"


def test_a_child_of_its_own_that_holds_its_output_delays_nothing() -> None:
    code = "import os, time; os.fork() or time.sleep(5)"
    started = time.monotonic()
    assert ended(child(code))[0].endswith("ended with code 0")
    assert time.monotonic() - started < 4.5


def test_it_inherits_the_descriptors_that_it_is_given_and_no_others() -> None:
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, b'from there')"
    heard = Child((sys.executable, "-c", code), fds=[writing])
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "from there"
    assert ended(heard)[0].endswith("ended with code 0")


def test_all_end_by_themselves_or_by_force() -> None:
    willing, unwilling = child(""), child("import time; time.sleep(60)")
    assert willing.wait(60)
    end_all([unwilling, willing], 0.1)
    hows = [last_words(*ended(x)) for x in (willing, unwilling)]
    assert hows[0] == f"process {willing.pid} ended with code 0."
    assert hows[1] == f"process {unwilling.pid} was killed by SIGKILL. Was there enough memory?"


def test_what_belongs_to_a_process_is_not_ended_by_a_fork_of_it() -> None:
    code = """
import os, sys
from hocket.system.children import at_end

class Owner: ...

kept, dropped = Owner(), Owner()
at_end(kept, print, "at the end")
at_end(dropped, print, "once it is gone")
if not os.fork():
    sys.exit()  # a fork that goes on in Python ends this way
os.wait()
del dropped
print("on its way", flush=True)
"""
    assert output(code) == "once it is gone\non its way\nat the end\n"
