from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hocket.report.display import (
    ages_bar,
    picture,
    plain_line,
    sparkline,
    time_left,
    time_parts,
)
from hocket.report.loggers import About
from hocket.report.loggers.display import Display
from hocket.report.outcome import Activity, Outcome

START = Outcome(Path("runs/ppo-CartPole-v1-1"), "ppo on CartPole-v1", seeds=1, total_steps=1000)
HALF = replace(
    START, env_steps=500, return_means=[math.nan],
    seconds={"trace": 1.0, "compile": 1.0, "run": 0.5, "other": 0.5},
)  # fmt: skip
END = replace(
    START, env_steps=1000, return_means=[123.4], notes=["resumed after 500 steps"],
    seconds={"trace": 1.0, "compile": 1.0, "run": 1.0, "save": 0.5, "other": 0.5},
    shares={"env": 0.25, "act": 0.25, "learn": 0.5},
)  # fmt: skip
PLACES = [
    Activity("actor", 4, 0.71, {"replay": 0.05, "learner": 0.22}, 1.3e6),
    Activity("learner", 1, 0.35, {"actor": 0.64}, 640.0),
    Activity("replay", 1, 1.0, {"actor": 0.001}),
]


def begun(run: Outcome, out: io.StringIO, terminal: bool) -> Display:
    display = Display(Console(file=out, force_terminal=terminal, width=110))
    display.begin(About(run.title, run.folder, {0: run.folder}, {}, run))
    return display


def shown(terminal: bool) -> str:
    out = io.StringIO()
    display = begun(START, out, terminal)
    display.update(HALF)
    display.update(END)
    display.update(END)  # an update that comes from saving
    display.end({"error": "not drawn again"})
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    begin, half, note, end = shown(terminal=False).splitlines()
    assert "compiling" in begin and "runs/ppo-CartPole-v1-1" in begin
    assert "500 steps" in half and "no episode has ended yet" in half and "1,000 steps/s" in half
    assert note == "note: resumed after 500 steps"
    assert "return 123.4" in end and "learning 25%" in end
    assert "\x1b" not in begin + half + end


def test_rows_draw_it_too() -> None:
    """Rows update the display even if nobody calls `update`, since the outcome is up to date."""
    out, run = io.StringIO(), replace(START)
    display = begun(run, out, terminal=False)
    display.row(250, {"iteration": 1}, 0)  # no speed is known yet
    vars(run).update(vars(HALF))
    display.row(500, {"iteration": 1}, 0)
    vars(run).update(vars(END))
    display.row(500, {"iteration": 2}, 0)  # too soon to be drawn again
    display.media(Path("trace.json"))
    display.end({})
    _, half, written, note, end = out.getvalue().splitlines()
    assert "500 steps" in half and written == "written: trace.json"
    assert note == "note: resumed after 500 steps" and "return 123.4" in end


def test_a_panel_in_a_terminal() -> None:
    text = shown(terminal=True)
    for part in ("ppo on CartPole-v1", "━", "123.4", "compiling 2.0 s", "environment 12%"):
        assert part in text, part


def test_names_are_no_markup() -> None:
    odd = replace(END, folder=Path("runs/[/x] [bold]"), title="[red]", notes=["[/b] is damaged"])
    for terminal in (True, False):
        out = io.StringIO()
        begun(odd, out, terminal).end({})
        assert "[/x] [bold]" in out.getvalue() and "[/b] is damaged" in out.getvalue()


def panel(run: Outcome, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(picture(run, []))
    return out.getvalue().splitlines()


def test_a_row_for_each_place() -> None:
    alone, *rows = panel(END), *panel(replace(END, places=PLACES))[-4:-1]
    assert panel(replace(END, places=PLACES))[: len(alone) - 1] == alone[:-1]
    actor, learner, replay = (" ".join(row.strip("│ ").split()) for row in rows)
    assert actor == "actor x4 busy ██████░░ 71% waits for learner 22%, replay 5% 1.3 MB/s out"
    assert learner == "learner busy ███░░░░░ 35% waits for actor 64% 640 B/s out"
    assert replay == "replay busy ████████ 100% never waits 0 B/s out"
    assert plain_line(replace(END, places=PLACES)).endswith(
        "   actor 71% busy, learner 35% busy, replay 100% busy"
    )
    assert plain_line(END).endswith(")")


def test_the_panel_keeps_to_its_width() -> None:
    waits = {"a place with a name that is long": 0.3, "another of that kind": 0.2}
    odd = Activity("[red]" * 8, 1024, 0.5, waits, 2.5e12)
    for run in (END, replace(END, places=PLACES), replace(END, places=[odd])):
        assert {len(line) for line in panel(run)} == {80}
    assert "[red][red]" in "".join(panel(replace(END, places=[odd])))


def test_where_the_time_went() -> None:
    assert time_parts(START) == {"compiling": "0.0 s"}
    assert time_parts(HALF) == {"compiling": "2.0 s", "running": "50%", "other": "50%"}
    assert time_parts(END) == {
        "compiling": "2.0 s", "environment": "12%", "acting": "12%", "learning": "25%",
        "saving": "25%", "other": "25%",
    }  # fmt: skip


def test_returns_over_seeds_and_evaluations() -> None:
    many = replace(END, seeds=2, return_means=[100.0, 300.0], eval_means=[400.0, 500.0])
    assert "200.0 (100.0 to 300.0, 2 seeds), evaluated 450.0" in plain_line(many)


def test_time_left() -> None:
    assert time_left(START) == "" and time_left(END) == ""
    assert time_left(HALF) == ", 0:00:01 left"
    slow = replace(HALF, seconds={"run": 4000.0})
    assert time_left(slow) == ", 1:06:40 left"


def test_sparkline() -> None:
    assert sparkline([]) == sparkline([1.0, 1.0]) == ""
    assert sparkline([math.nan, 0.0, 7.0]) == "▁█"
    assert len(sparkline(list(range(1000)))) <= 24 and sparkline(list(range(1000)))[-1] == "█"


def test_the_ages_of_samples() -> None:
    run = replace(END, places=PLACES, ages=[1, 0, 40, 20])
    row = panel(run)[-2]
    assert "ages" in row and "▂ █▅" in row and "0 to 3 iterations, mean 2.3" in row
    assert plain_line(run).endswith("samples old by 0 to 3 iterations, mean 2.3")
    assert len(ages_bar([1] * 500)) <= 18
