"""The entry point: picks the command and prints errors. Imports nothing slow."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from hocket.errors import Mistake, unknown

COMMANDS = {
    "train": ("train", "train an agent, and keep the run in a folder"),
    "eval": ("inspect", "play episodes with a trained agent, and print its returns"),
    "plot": ("inspect", "draw the learning curves of runs"),
    "record": ("inspect", "record a video of a trained agent"),
    "plan": ("look", "print what would run where, and what would cross"),
    "graph": ("look", "print an algorithm's fragments and what flows between them"),
    "algorithms": ("lists", "list the algorithms"),
    "envs": ("lists", "list the environments"),
    "strategies": ("lists", "list the strategies, which say where an algorithm runs"),
    "devices": (
        "lists",
        "list the devices of this machine or a cluster, and ways to cut them into slices",
    ),
    "replay": ("replay", "start a replay server, or show what one holds"),
}
"""Each command's module, which defines `NAME_command`, and a line of help."""

HELP = """usage: hocket COMMAND ...

Train reinforcement-learning agents: an algorithm says what to compute, a strategy where.

{commands}

`hocket COMMAND --help` says more; `hocket train ppo --help` lists the settings of PPO.
Add --debug to any command to see the traceback of an error.

    hocket train ppo                                 learn CartPole
    hocket train dqn --env Catch --seeds 8           eight agents in one program
    hocket train ppo --distribute actor_learner --launch processes
    hocket train path/to/file.py:SAC --env Pendulum-v1
    hocket eval runs/ppo-CartPole-v1-1
"""


def main() -> None:
    """Run one command. After a mistake of the user, print only its message, and exit with 2.

    After a failure of an instance or an environment, print its message, which contains the
    traceback, and exit with 1.
    """
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        rows = (f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
        print(HELP.format(commands="\n".join(rows)))
        return
    if arguments[0] == "--version":
        print(f"hocket {importlib.import_module('hocket').__version__}")
        return
    try:
        _run(*arguments)
    except KeyboardInterrupt:
        print("hocket: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader closed the pipe, as in `hocket envs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        has_traceback = _has_traceback(error)
        if debug or not (has_traceback or _is_mistake(error)):
            raise
        notes = vars(error).get("__notes__", [])
        lines = [f"hocket: {error if has_traceback else _message(error)}", *notes]
        print("\n".join(lines), file=sys.stderr)
        sys.exit(1 if has_traceback else 2)


def _run(name: str, *arguments: str) -> None:
    if name not in COMMANDS:
        raise ValueError(unknown("command", name, COMMANDS))
    # Import only this command's module: importing the others is slow, and `hocket replay` needs
    # little of hocket.
    module = importlib.import_module(f"hocket.cli.{COMMANDS[name][0]}")
    vars(module)[f"{name}_command"](list(arguments))


def _is_mistake(error: Exception) -> bool:
    """Return True if the user can correct the error, so that its message is enough."""
    from hocket.runtime.checkpoint import CheckpointError
    from hocket.training.loggers import LoggerError

    kinds = (Mistake, ValueError, ImportError, OSError, CheckpointError, LoggerError)
    return isinstance(error, kinds)


def _has_traceback(error: Exception) -> bool:
    """Return True if the error's message already contains the traceback of the failure."""
    from hocket.envs import HostEnvError
    from hocket.runtime.launch.watch import Deadlock, InstanceError

    return isinstance(error, (InstanceError, Deadlock, HostEnvError))


def _message(error: Exception) -> str:
    """Return the error's message; if another package raised it, name the function that did."""
    text = str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(__file__).parents[1] in Path(frames[-1].filename).parents
    return text if ours else f"{text}\n(from {frames[-1].name}; --debug shows where)"


if __name__ == "__main__":
    main()
