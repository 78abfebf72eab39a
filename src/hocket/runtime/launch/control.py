"""The control connection, which carries commands from a run to an instance, and answers back.

It carries a few messages per block; values between instances go through their channels. To an
instance on this machine it is a Unix socket (`hocket.system.network.local`), to one on another node
it passes through that node's steward (`nodes.py`). Instances in the run's own process have queues
for commands and answers instead.
"""

from __future__ import annotations

import contextlib
import queue
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Control(Protocol):
    """The run's end of the control connection to one instance."""

    def write(self, message: Any) -> None: ...

    def read(self) -> Any:
        """Return the next message, waiting for it. Raise `EOFError` if the instance has gone."""

    def close(self) -> None:
        """Hang up, which makes the instance end."""


class Answer(NamedTuple):
    """The answer of an instance: `done` with a result, `failed`, or `gone` without an answer."""

    instance: str
    outcome: str
    content: Any = None


class Failure(NamedTuple):
    """The reason why a command failed."""

    text: str
    """The traceback."""
    error: BaseException | None = None
    """The exception itself, if it was raised in this process."""


Answers = queue.SimpleQueue[Answer]


def tell(connection: Control, message: Any) -> None:
    """Send a message. Do not raise if the process has died: its missing answer will show that."""
    with contextlib.suppress(OSError):
        connection.write(message)


def pass_answers(
    connection: Control, instance: str, answers: Answers, note: Callable[[Any], None]
) -> None:
    """Pass an instance's answers to `answers` and its statuses to `note`, until it hangs up."""
    while True:
        try:
            outcome, content = connection.read()
            if outcome == "status":
                note(content)
                continue
            if outcome != "done" and not (outcome == "failed" and isinstance(content, Failure)):
                raise ValueError(f"an instance answered neither `done` nor `failed`: {outcome!r}")
        except EOFError:
            answers.put(Answer(instance, "gone"))
            return
        except Exception:  # noqa: BLE001 (the answer cannot be read: the run reports that)
            answers.put(Answer(instance, "failed", Failure(traceback.format_exc())))
            return
        answers.put(Answer(instance, outcome, content))
