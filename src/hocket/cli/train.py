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
class Again:
    """Continuing, repeating, and what is shown."""

    resume: bool = False
    """Continue the run, exactly, from its last checkpoint."""
    config: Path | None = None
    """Take everything from the config.json of a run; other flags change it."""
    trace: Path | None = None
    """Write what every instance did when (segments, messages, waits) into this file, for
    https://ui.perfetto.dev. Recording slows a run down."""
    quiet: bool = False
    """Show nothing but a line at the end."""
    debug: bool = False
    """Show the traceback of a mistake."""  # `main` reads it, before anything can go wrong


def train_command(arguments: list[str]) -> None:
    """Train an agent, and keep the run in a folder."""
    word, rest = split_word(arguments)
    keep_imports()
    heed_termination()
    # Before an environment is made, which may start JAX.
    on_slices = setting_of(rest, "distribute").startswith("sliced")
    seeds = setting_of(rest, "seeds")
    if seeds.isdigit() and not on_slices:  # slices share the cores themselves
        share_cores(int(seeds))
    if on_slices or not launch_named(setting_of(rest, "launch")).one_process:
        leave_memory()
    defaults, settings = defaults_of(word, rest, "train")
    about = f"Train an agent, and keep the run in a folder.\n\n{strategies_text()}"
    command: Any = parse(
        "train", word, rest, about, algorithm=defaults, settings=settings, again=Again()
    )
    again, display = command.again, Display()
    shown: dict[str, Any] = {"watch": display.update, "loggers": {"display": display}}
    outcome = Experiment(
        command.algorithm, command.settings, again.resume, trace=again.trace,
        **({} if again.quiet else shown),
    ).train()  # fmt: skip
    print(outcome if again.quiet else _told(outcome))
    if outcome.interrupted:
        sys.exit(130)  # as Ctrl-C has it; what there is to say was said


def _told(outcome: Outcome) -> str:
    seconds = outcome.seconds
    compiling = seconds.get("trace", 0.0) + seconds.get("compile", 0.0)
    return (
        f"{outcome.return_text} (last 100 episodes) after {outcome.env_steps:,} steps: "
        f"{seconds.get('run', 0.0):.1f} s running, {compiling:.1f} s compiling\n"
        f"saved in {outcome.folder}; next: hocket eval {outcome.folder}"
    )
