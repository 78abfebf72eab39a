from __future__ import annotations

import io
import math

from rich.console import Console

from hocket.report.display import Display


def shown(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with Display("ppo on CartPole-v1", 1000, console) as display:
        display.update(500, math.nan, 0.5)
        display.update(1000, 123.4, 1.0)
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    first, last = shown(terminal=False).splitlines()
    assert "500 steps" in first and "no episode ended yet" in first and "1,000 steps/s" in first
    assert "return    123.4" in last
    assert "\x1b" not in first + last


def test_one_live_line_in_a_terminal() -> None:
    text = shown(terminal=True)
    assert "━" in text and "return    123.4" in text
