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
from hocket.report.outcome import Outcome
from hocket.runtime.launch import launch_named
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
    if command.again.quiet:
        outcome = Experiment(**_about(command)).train()
        print(_line(outcome))
    else:
        outcome = _shown(command)
        _tell(outcome)
    if outcome.interrupted:
        sys.exit(130)  # as Ctrl-C has it; what there is to say was said


def _shown(command: Any) -> Outcome:
    from hocket.report.loggers.display import Display

    display = Display()
    about = _about(command)
    return Experiment(**about, watch=display.update, loggers={"display": display}).train()


def _about(command: Any) -> dict[str, Any]:
    again, settings = command.again, command.settings
    return {
        "algorithm": command.algorithm, "settings": settings, "resume": again.resume,
        "trace": again.trace,
    }  # fmt: skip


def _tell(outcome: Outcome) -> None:
    seconds = outcome.seconds
    compiling = seconds.get("trace", 0.0) + seconds.get("compile", 0.0)
    print(
        f"{_return(outcome)} (last 100 episodes) after {outcome.env_steps:,} steps: "
        f"{seconds.get('run', 0.0):.1f} s running, {compiling:.1f} s compiling"
    )
    print(f"saved in {outcome.folder}; next: hocket eval {outcome.folder}")


def _line(outcome: Outcome) -> str:
    """The end of a run that was quiet: how well, how fast, and where it is."""
    rate = f"{outcome.env_steps_per_second:,.0f} steps/s"
    stopped = ", interrupted" if outcome.interrupted else ""
    steps = f"{outcome.env_steps:,} steps{stopped}"
    return f"{_return(outcome)} after {steps}, {rate}: {outcome.folder}"


def _return(outcome: Outcome) -> str:
    mean = outcome.return_mean
    return "no episode ended" if math.isnan(mean) else f"return {mean:.1f}"
