"""`hocket train`: train an agent, and keep the run in a folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cli.flags import defaults_of, parse, setting_of, split_word
from hocket.cli.look import leave_memory, strategies_text
from hocket.cluster import share_cores
from hocket.report.loggers.display import Display
from hocket.report.outcome import Outcome
from hocket.runtime.launch import launch_named
from hocket.system.garbage import keep_imports
from hocket.system.signals import heed_termination
from hocket.training.keep import Experiment


@dataclass(frozen=True)
class Session:
    """Flags to continue or repeat a run, and to choose what it shows."""

    resume: bool = False
    """Continue the run exactly where its last checkpoint left it."""
    config: Path | None = None
    """The folder or config.json of another run to start from; other flags override its settings."""
    trace: Path | None = None
    """Write a timeline of all instances (segments, messages, waits) to this file, to be opened at
    https://ui.perfetto.dev. Recording slows the run down."""
    quiet: bool = False
    """Print only one line, at the end."""
    debug: bool = False
    """Show the traceback of an error."""  # for --help only: `main` uses this flag


def train_command(arguments: list[str]) -> None:
    """Train an agent, and keep the run in a folder."""
    word, rest = split_word(arguments)
    keep_imports()
    heed_termination()
    # JAX reads these settings when it starts, and making an environment may already start it.
    on_slices = setting_of(rest, "distribute").startswith("sliced")
    seeds = setting_of(rest, "seeds")
    if seeds.isdigit() and not on_slices:  # slices divide the cores themselves
        share_cores(int(seeds))
    elsewhere = (
        setting_of(rest, "cluster") or not launch_named(setting_of(rest, "launch")).one_process
    )
    if on_slices or elsewhere:
        leave_memory()
    defaults, settings = defaults_of(word, rest, "train")
    about = f"Train an agent, and keep the run in a folder.\n\n{strategies_text()}"
    command: Any = parse(
        "train", word, rest, about, algorithm=defaults, settings=settings, session=Session()
    )
    session, display = command.session, Display()
    shown: dict[str, Any] = {"watch": display.update, "loggers": {"display": display}}
    outcome = Experiment(
        command.algorithm, command.settings, session.resume, trace=session.trace,
        **({} if session.quiet else shown),
    ).train()  # fmt: skip
    print(outcome if session.quiet else _summary(outcome))
    if outcome.interrupted:
        sys.exit(130)  # the shell's code for Ctrl-C


def _summary(outcome: Outcome) -> str:
    seconds = outcome.seconds
    compiling = seconds.get("trace", 0.0) + seconds.get("compile", 0.0)
    return (
        f"{outcome.return_text} (last 100 episodes) after {outcome.env_steps:,} steps: "
        f"{seconds.get('run', 0.0):.1f} s running, {compiling:.1f} s compiling\n"
        f"saved in {outcome.folder}; next: hocket eval {outcome.folder}"
    )
