"""Example of a launcher: a program for each instance, which inherits only its environment.

hocket train ppo --launch examples/own_launcher.py:Programs
python examples/own_launcher.py     # verifies it
"""

import subprocess
import threading
from collections import deque

from hocket.runtime.launch import Command, Fate, Launch, Seat
from hocket.testing import check_launcher


class Programs:
    """Starts each seat as a program of this machine. They share no memory."""

    launch = Launch(one_process=False, one_program=False, shares_memory="none")

    def why_not(self, plan):
        """Accept every plan: a program can always be started."""
        return ""

    def reserve(self, seats, seconds):
        """Do nothing. A launcher for a cluster would wait here for room for every seat."""

    def start(self, seat: Seat, command: Command) -> "Program":
        return Program(command)

    def release(self):
        """Do nothing, because nothing was reserved."""


class Program:
    """One running program: its first line, its end, and a way to end it."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command.argv, env=dict(command.env), start_new_session=True,  # Ctrl-C is for the run
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with self.process.stdin as pipe:
            pipe.write(command.stdin)
        self.first_line, self.has_spoken = "", threading.Event()
        self.last_words = deque(maxlen=40)
        self.listeners = [threading.Thread(target=f, daemon=True) for f in (self._hear, self._warn)]
        for listener in self.listeners:
            listener.start()

    def hello(self, seconds):
        if not self.has_spoken.wait(seconds):
            raise TimeoutError(f"program {self.process.pid} printed nothing for {seconds} s")
        return self.first_line

    def poll(self):
        code = self.process.poll()
        if code is None:
            return None
        self.listeners[1].join(1.0)  # reads the rest of its standard error
        return Fate(f"program {self.process.pid} ended with code {code}", "".join(self.last_words))

    def kill(self, seconds):
        self.process.kill()
        self.process.wait(seconds)
        return True

    def _hear(self):
        with self.process.stdout as lines:
            self.first_line = lines.readline().decode().strip()
            self.has_spoken.set()
            for line in lines:  # a full pipe would stop the program
                print(line.decode(), end="")

    def _warn(self):
        with self.process.stderr as lines:
            for line in lines:
                self.last_words.append(line.decode())


if __name__ == "__main__":
    print(check_launcher(f"{__file__}:Programs"))
