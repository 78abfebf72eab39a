"""The live display of a run: progress, mean return, speed, and the share of each activity.

    ╭─ ppo on CartPole-v1 ──────────────────────────────────────────────────────╮
    │ steps   ━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━  352,256 of 507,904, 0:00:01 left │
    │ return  478.2  ▁▁▂▃▅▆▇▇██                                  284,112 steps/s │
    │ time    ██████████████████████████                                   3.4 s │
    │         ■ compiling 2.1 s   ■ environment 28%   ■ acting 9%   ■ learning … │
    ╰────────────────────────────────────────────────── runs/ppo-CartPole-v1-1 ─╯

If the run has several places, a row for each follows:

    │ actor x4  busy ██████░░  71%  waits for learner 22%           1.3 MB/s out │

and with `lag=free`, the ages of the samples that the learner learned from:

    │ ages      ▁▃▇█▂▁              0 to 5 iterations, mean 2.6                   │

Without a terminal, the display is plain lines of text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Group
from rich.filesize import decimal
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hocket.report.outcome import Activity, Outcome

BUSY = 8
"""The width in characters of the bar that shows how busy a place is."""
BLOCKS = "▁▂▃▄▅▆▇█"
ROLES = {
    "env": "environment",
    "act": "acting",
    "learn": "learning",
    "gradient": "learning",
    "replay": "replay",
    "wait": "waiting",
}
COLORS = {
    "compiling": "magenta",
    "environment": "green",
    "acting": "cyan",
    "learning": "blue",
    "replay": "yellow",
    "running": "blue",
    "profiling": "bright_black",
    "evaluating": "bright_green",
    "saving": "bright_yellow",
    "waiting": "red",
    "other": "bright_black",
}
"""The color of each activity, in the order in which they are shown."""
SECONDS = {
    "profiling": "profile",
    "evaluating": "evaluate",
    "saving": "save",
    "other": "other",
}
"""For each activity with an entry of its own in `Outcome.seconds`, the key of that entry."""


def picture(run: Outcome, returns: Sequence[float]) -> Panel:
    """Return the whole display for a terminal."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(ratio=1, no_wrap=True)
    rows.add_column(justify="right", no_wrap=True)
    progress = ProgressBar(run.total_steps, min(run.env_steps, run.total_steps))
    rows.add_row("steps", progress, f"{run.env_steps:,} of {run.total_steps:,}{time_left(run)}")
    rows.add_row("return", Text(f"{returns_text(run)}  {sparkline(returns)}"), rate_text(run))
    rows.add_row("time", _time_bar(run), f"{sum(run.seconds.values()):.1f} s")
    return Panel(
        Group(rows, _time_legend(run), *([_place_rows(run)] if run.places else [])),
        title=Text(run.title, style="bold"),
        title_align="left",
        subtitle=Text(str(run.folder)),
        subtitle_align="right",
        border_style="bright_black",
    )


def plain_line(run: Outcome) -> str:
    """Return the contents of the display as one line of text."""
    parts = ", ".join(f"{name} {value}" for name, value in time_parts(run).items())
    returns = returns_text(run)
    returns = returns if returns.startswith("no") else f"return {returns}"
    places = ", ".join(f"{place.name} {place.busy:.0%} busy" for place in run.places)
    line = f"{run.env_steps:>11,} steps   {returns}   {rate_text(run)}   ({parts})"
    ages = f", samples old by {ages_text(run.ages)}" if run.ages else ""
    return f"{line}   {places}{ages}" if places else line


def time_spent(run: Outcome) -> dict[str, float]:
    """Return the seconds spent on each activity, in the order of `COLORS`."""
    seconds, running = run.seconds, run.seconds.get("run", 0.0)
    spent = dict.fromkeys(COLORS, 0.0)
    spent["compiling"] = seconds.get("trace", 0.0) + seconds.get("compile", 0.0)
    for role, share in run.shares.items():
        spent[ROLES[role]] += share * running
    spent["running"] = running * (1.0 - sum(run.shares.values()))
    return spent | {activity: seconds.get(name, 0.0) for activity, name in SECONDS.items()}


def time_parts(run: Outcome) -> dict[str, str]:
    """Return the time spent as text: compiling in seconds, the others in percent of their sum."""
    spent = time_spent(run)
    compiling = spent.pop("compiling")
    rest = sum(spent.values()) or 1.0
    parts = {name: f"{x / rest:.0%}" for name, x in spent.items() if x / rest >= 0.005}
    return {"compiling": f"{compiling:.1f} s", **parts}


def returns_text(run: Outcome) -> str:
    """Return the mean return with its range over seeds, and the return of the last evaluation."""
    known = [x for x in run.return_means if not math.isnan(x)]
    if not known:
        return "no episode has ended yet"
    text = f"{run.return_mean:.1f}"
    if run.seeds > 1:
        text += f" ({min(known):.1f} to {max(known):.1f}, {run.seeds} seeds)"
    return text + (f", evaluated {run.eval_mean:.1f}" if run.eval_means else "")


def rate_text(run: Outcome) -> str:
    """Return the environment steps per second, or `compiling` before the first steps."""
    rate = run.env_steps_per_second
    return f"{rate:,.0f} steps/s" if rate else "compiling"


def time_left(run: Outcome) -> str:
    """Return how long the rest of the run will take at the speed so far."""
    rate = run.env_steps_per_second / run.seeds
    left = run.total_steps - run.env_steps
    if not rate or left <= 0:
        return ""
    return f", {timedelta(seconds=math.ceil(left / rate))} left"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return a series of values as one line of blocks."""
    known = [x for x in values if not math.isnan(x)]
    if len(known) < 2 or max(known) == min(known):
        return ""
    step = max(1, math.ceil(len(known) / width))
    chosen = known[::-1][::step][::-1]  # step back from the end, so that the last value is shown
    low, high = min(chosen), max(chosen)
    return "".join(BLOCKS[int((x - low) / ((high - low) or 1.0) * 7)] for x in chosen)


def waits_text(place: Activity) -> str:
    """Return, as text, the places that a place waits for, the longest wait first."""
    order = sorted(place.waits, key=lambda whom: -place.waits[whom])
    parts = [f"{whom} {place.waits[whom]:.0%}" for whom in order if place.waits[whom] >= 0.005]
    return f"waits for {', '.join(parts)}" if parts else "never waits"


def _time_bar(run: Outcome, width: int = 48) -> Text:
    """Return the time spent on each activity as a colored bar."""
    spent = time_spent(run)
    whole, text, done = sum(spent.values()) or 1.0, Text(), 0.0
    for name, x in spent.items():
        cells = round((done + x) / whole * width) - round(done / whole * width)
        text.append("█" * cells, style=COLORS[name])
        done += x
    return text


def _time_legend(run: Outcome) -> Text:
    text = Text(" " * 8, no_wrap=True, overflow="ellipsis")
    for name, value in time_parts(run).items():
        text.append("■ ", style=COLORS[name]).append(f"{name} {value}  ")
    return text


def _place_rows(run: Outcome) -> Table:
    """Return a row for each place: how busy it is, what it waits for, and how much it sends."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="bold", no_wrap=True, overflow="ellipsis", max_width=18)
    rows.add_column(no_wrap=True, width=BUSY + 10)
    rows.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    rows.add_column(justify="right", no_wrap=True)
    for place in run.places:
        sent = decimal(int(place.bytes_per_second)).replace("bytes", "B")
        name = place.name + (f" x{place.replicas}" if place.replicas > 1 else "")
        rows.add_row(Text(name), _busy_bar(place), Text(waits_text(place)), f"{sent}/s out")
    if run.ages:
        rows.add_row("ages", ages_bar(run.ages), ages_text(run.ages), "")
    return rows


def ages_bar(ages: Sequence[int], width: int = 18) -> str:
    """Return the ages of samples as one line of blocks, from the newest to the oldest."""
    step = math.ceil(len(ages) / width)
    counts = [sum(ages[k : k + step]) for k in range(0, len(ages), step)]
    return "".join(BLOCKS[math.ceil(7 * n / max(counts))] if n else " " for n in counts)


def ages_text(ages: Sequence[int]) -> str:
    """Return the range and the mean of the samples' ages."""
    seen = [age for age, count in enumerate(ages) if count]
    average = sum(age * count for age, count in enumerate(ages)) / sum(ages)
    return f"{seen[0]} to {seen[-1]} iterations, mean {average:.1f}"


def _busy_bar(place: Activity) -> Text:
    full = min(BUSY, round(place.busy * BUSY))
    text = Text("busy ").append("█" * full, style="blue")
    return text.append("░" * (BUSY - full), style="bright_black").append(f" {place.busy:>4.0%}")
