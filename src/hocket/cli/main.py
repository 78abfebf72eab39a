"""The command line: which command, and how a mistake is told. Imports nothing slow."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from hocket.errors import Mistake, unknown

COMMANDS = {
    "train": ("train", "train an agent, and keep the run in a folder"),
    "eval": ("inspect", "play a trained agent and say how good it is"),
    "plot": ("inspect", "draw the learning curves of runs"),
    "record": ("inspect", "film a trained agent"),
    "plan": ("look", "print who would run where and what would cross; starts nothing"),
    "graph": ("look", "print the fragments of an algorithm and what flows between them"),
    "algorithms": ("lists", "list the algorithms"),
    "envs": ("lists", "list the environments"),
    "strategies": ("lists", "list the strategies, which say where an algorithm runs"),
    "devices": ("lists", "list what this machine has, and how each device can be cut into slices"),
    "replay": ("replay", "start a replay server, or look into one"),
}
"""For each command its module, which has it as `NAME_command`, and what it does."""

HELP = """usage: hocket COMMAND ...

Trains reinforcement-learning agents: an algorithm says what is computed, a strategy where.

{commands}

`hocket COMMAND --help` says more; `hocket train ppo --help` lists what PPO can be told.
With --debug, a mistake shows its traceback.

    hocket train ppo                                 learn CartPole
    hocket train dqn --env Catch --seeds 8           eight agents in one program
    hocket train ppo --distribute actor_learner --launch processes
    hocket train path/to/file.py:SAC --env Pendulum-v1
    hocket eval runs/ppo-CartPole-v1-1
"""


def main() -> None:
    """Run one command; a user's mistake is a sentence and exit code 2, not a traceback."""
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
    except BrokenPipeError:  # whoever read the output has stopped: `hocket envs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if debug or not (_is_mistake(error) or _is_told(error)):
            raise
        told = _is_told(error)
        notes = vars(error).get("__notes__", [])
        lines = [f"hocket: {error if told else _sentence(error)}", *notes]
        print("\n".join(lines), file=sys.stderr)
        sys.exit(1 if told else 2)


def _run(name: str, *arguments: str) -> None:
    if name not in COMMANDS:
        raise ValueError(unknown("command", name, COMMANDS))
    # Only that module: `hocket replay` does without most of hocket, which takes a while.
    module = importlib.import_module(f"hocket.cli.{COMMANDS[name][0]}")
    vars(module)[f"{name}_command"](list(arguments))


def _is_mistake(error: Exception) -> bool:
    """Whether the user can do something about it: then a sentence is enough."""
    from hocket.runtime.checkpoint import CheckpointError
    from hocket.training.loggers import LoggerError

    kinds = (Mistake, ValueError, ImportError, OSError, CheckpointError, LoggerError)
    return isinstance(error, kinds)


def _is_told(error: Exception) -> bool:
    """Whether it says by itself who failed and where: a traceback from here would hide that."""
    from hocket.envs import HostEnvError
    from hocket.runtime.launch.watch import Deadlock, InstanceError

    return isinstance(error, (InstanceError, Deadlock, HostEnvError))


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(__file__).parents[1] in Path(frames[-1].filename).parents
    return text if ours else f"{text}\n(from {frames[-1].name}; --debug shows where)"


if __name__ == "__main__":
    main()
