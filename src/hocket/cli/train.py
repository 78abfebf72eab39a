"""`hocket train`: train an agent, and keep the run in a folder."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cli.flags import defaults_of, parse, setting_of, split_word
from hocket.cli.look import leave_memory, strategies_text
from hocket.cluster import share_cores
from hocket.runtime.launch import launch_named
from hocket.system.signals import heed_termination
from hocket.training.keep import Experiment, Outcome


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
    """Show nothing."""
    debug: bool = False
    """Show the traceback of a mistake."""  # `main` reads it, before anything can go wrong


def train(arguments: list[str]) -> None:
    """Train an agent, and keep the run in a folder."""
    word, rest = split_word(arguments)
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
    outcome = _watch(command) if not command.again.quiet else _experiment(command, None).train()
    if not command.again.quiet:
        _tell(outcome)
    if outcome.interrupted:
        sys.exit(130)  # as Ctrl-C has it; what there is to say was said


def _watch(command: Any) -> Outcome:
    from hocket.report.display import Display

    with Display() as display:
        return _experiment(command, display).train()


def _experiment(command: Any, watch: Any) -> Experiment:
    again = command.again
    return Experiment(command.algorithm, command.settings, again.resume, watch, again.trace)


def _tell(outcome: Outcome) -> None:
    seconds = outcome.seconds
    compiling = seconds.get("trace", 0.0) + seconds.get("compile", 0.0)
    found = "no episode ended" if math.isnan(outcome.return_mean) else f"{outcome.return_mean:.1f}"
    print(
        f"return {found} (last 100 episodes) after {outcome.env_steps:,} steps: "
        f"{seconds.get('run', 0.0):.1f} s running, {compiling:.1f} s compiling"
    )
    print(f"saved in {outcome.folder}; next: hocket eval {outcome.folder}")
