"""The timeline of a run: shares, text, and the trace that viewers load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.runtime.observe.timeline import Span, Timeline

WAY = "actor/{} -> learner/0 #3"
# Two actors compute for a second each, the second one later; the learner waits, then updates.
SPANS = (
    Span("actor/0", "compute", "act, env", 10.0, 11.0),
    Span("actor/0", "send", WAY.format(0), 11.0, 11.1, nbytes=4000),
    Span("actor/1", "compute", "act, env", 10.0, 10.5),
    Span("actor/1", "compute", "act, env", 10.25, 11.5),  # overlaps with the one before
    Span("actor/1", "send", WAY.format(1), 11.5, 11.6, nbytes=4000),
    Span("actor/1", "wait", "learner", 11.6, 11.6),
    Span("learner/0", "receive", WAY.format(0), 10.0, 11.2, nbytes=4000),
    Span("learner/0", "wait", "actor", 10.0, 11.0),
    Span("learner/0", "receive", WAY.format(1), 11.2, 11.7, nbytes=4000),
    Span("learner/0", "wait", "actor", 11.2, 11.5),
    Span("learner/0", "compute", "update", 11.7, 14.0, iteration=7),
)
TIMELINE = Timeline(SPANS)


def saved(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    return json.loads(timeline.save(folder / "new" / "run.json").read_text())["traceEvents"]


def test_shares() -> None:
    assert TIMELINE.seconds == 4.0 and TIMELINE.instances == ("actor/0", "actor/1", "learner/0")
    assert TIMELINE.busy() == pytest.approx({"actor/0": 0.25, "actor/1": 0.375, "learner/0": 0.575})
    assert TIMELINE.waits() == pytest.approx(
        {("actor/1", "learner"): 0.0, ("learner/0", "actor"): 0.325}
    )
    assert TIMELINE.sent() == {"actor/0": 4000, "actor/1": 4000, "learner/0": 0}


def test_text() -> None:
    assert (
        str(TIMELINE)
        == """\
instance    busy   waits         sent   for whom
actor/0      25%      0%      3.9 KiB   -
actor/1      38%      0%      3.9 KiB   -
learner/0    58%     33%          0 B   actor 33%
11 spans in 4 s"""
    )
    assert (
        str(Timeline(()))
        == "nothing was recorded (the first iteration, which compiles, is left out)"
    )
    assert "; 1,200 more spans had no room" in str(Timeline(SPANS, left_out=1200))


def test_a_trace_that_viewers_load(tmp_path: Path) -> None:
    events = saved(TIMELINE, tmp_path)
    about, rest = [e for e in events if e["ph"] == "M"], [e for e in events if e["ph"] != "M"]
    assert events == about + rest
    assert [e["ts"] for e in rest] == sorted(e["ts"] for e in rest) and rest[0]["ts"] == 0.0
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) for e in events)
    named = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in about}
    assert named["process_name", 1, 1] == named["process_name", 1, 2] == "actor"
    assert named["thread_name", 1, 2] == "actor/1" and named["thread_name", 2, 3] == "learner/0"
    (update,) = [e for e in rest if e["name"] == "update"]
    assert (update["ph"], update["ts"], update["dur"]) == ("X", 1_700_000.0, 2_300_000.0)
    assert update["args"] == {"bytes": 0, "iteration": 7}
    # Nobody waited in that one.
    assert [e["tid"] for e in rest if e["cat"] == "wait"] == [3, 3]


def test_what_a_thread_does_is_nested(tmp_path: Path) -> None:
    events = [e for e in saved(TIMELINE, tmp_path) if e["ph"] == "X" and e["tid"] == 3]
    open_until: list[float] = []
    for e in events:
        while open_until and open_until[-1] <= e["ts"]:
            open_until.pop()
        assert not open_until or e["ts"] + e["dur"] <= open_until[-1], e
        open_until.append(e["ts"] + e["dur"])
    assert [e["cat"] for e in events[:2]] == ["receive", "wait"]


def test_an_arrow_from_each_send_to_its_receive(tmp_path: Path) -> None:
    events = saved(TIMELINE, tmp_path)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == 2 and starts.keys() == ends.keys()
    assert [(starts[i]["tid"], ends[i]["tid"]) for i in starts] == [(1, 3), (2, 3)]
    for i, end in ends.items():
        assert starts[i]["ts"] <= end["ts"]
        (inside,) = [
            e for e in events
            if e["ph"] == "X" and e["tid"] == 3 and e["ts"] <= end["ts"] < e["ts"] + e["dur"]
        ]  # fmt: skip
        assert inside["name"] == f"receive {WAY.format(i)}"


def test_messages_from_before_the_recording_have_no_arrow() -> None:
    name = WAY.format(0)
    spans = (
        Span("learner/0", "receive", name, 0.0, 1.0),
        Span("actor/0", "send", name, 2.0, 2.1),
        Span("learner/0", "receive", name, 1.5, 2.5),
        Span("actor/0", "send", name, 3.0, 3.1),
    )
    arrows = [e for e in Timeline(spans).events() if e["ph"] in "sf"]
    assert [e["ph"] for e in arrows] == ["s", "f"]
    assert 2.0e6 < arrows[1]["ts"] < 2.5e6
