"""The timeline of a run: when each instance computed, sent, received and waited."""

from __future__ import annotations

import functools
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hocket.system.text import bytes_text


class Span(NamedTuple):
    """One thing that an instance did. `start` and `end` are seconds on a clock common to all.

    The name of a computation lists its fragments. A message has the same name at both ends, such as
    `actor/0 -> learner/0 #3`. A wait is named after the place that is waited for.
    """

    instance: str
    """A place and a number, such as `actor/0`."""
    kind: str
    """`compute`, `send`, `receive` or `wait`. A `wait` may lie inside a `send` or `receive`."""
    name: str
    start: float
    end: float
    nbytes: int = 0
    iteration: int = 0


@dataclass(frozen=True)
class Timeline:
    """The spans of all instances during a part of a run.

    timeline.save("run.json")       # open it at https://ui.perfetto.dev
    print(timeline)                 # who was busy, and who waited for whom
    """

    spans: tuple[Span, ...]
    left_out: int = 0
    """The number of further spans, for which there was no room."""

    @functools.cached_property
    def seconds(self) -> float:
        """The seconds from the earliest start to the latest end of any span."""
        return max((s.end for s in self.spans), default=0.0) - self._start

    @functools.cached_property
    def instances(self) -> tuple[str, ...]:
        """All instances that have spans, place by place."""
        instances = dict.fromkeys(s.instance for s in self.spans)
        order = list(dict.fromkeys(map(_place, instances)))
        # Shorter names first, so that `actor/10` comes after `actor/9`.
        return tuple(sorted(instances, key=lambda i: (order.index(_place(i)), len(i), i)))

    def busy(self) -> dict[str, float]:
        """Return the share of `seconds` for which each instance computes."""
        return {
            i: self._share(s for s in self._of(i) if s.kind == "compute") for i in self.instances
        }

    def waits(self) -> dict[tuple[str, str], float]:
        """Return the share of `seconds` for which each instance waits for each place.

        A key is a pair of an instance and a place.
        """
        waits: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for s in self.spans:
            if s.kind == "wait":
                waits[s.instance, s.name].append(s)
        return {pair: self._share(spans) for pair, spans in waits.items()}

    def sent(self) -> dict[str, int]:
        """Return the bytes that each instance sent, including what it averaged."""
        kinds = ("send", "wait")  # the bytes of an average are in the span of its wait
        return {i: sum(s.nbytes for s in self._of(i) if s.kind in kinds) for i in self.instances}

    def save(self, path: str | Path) -> Path:
        """Write a trace that https://ui.perfetto.dev and `chrome://tracing` can show.

        A place is shown as a process, an instance as a thread of that process, and a message as an
        arrow from its send to its receive.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}))
        return path

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the trace: names first, then spans and arrows sorted by start.

        A span that contains another comes before it.
        """
        spans = [s for s in self.spans if s.kind != "wait" or s.end > s.start]
        events = [*map(self._event, spans), *self._arrows()]
        events.sort(key=lambda e: (e["ts"], -e.get("dur", 0.0), e["cat"] == "wait"))
        return [*self._names(), *events]

    def __str__(self) -> str:
        if not self.spans:
            return "nothing was recorded (the first iteration, which compiles, is left out)"
        busy, waits, sent = self.busy(), self.waits(), self.sent()
        width = max(8, *(len(i) for i in self.instances))
        lines = [f"{'instance':<{width}}   busy   waits   {'sent':>10}   for whom"]
        for i in self.instances:
            mine = {peer: share for (who, peer), share in waits.items() if who == i}
            order = sorted(mine, key=lambda peer: -mine[peer])
            whom = ", ".join(f"{peer} {mine[peer]:.0%}" for peer in order if mine[peer] >= 0.005)
            lines.append(
                f"{i:<{width}}   {busy[i]:4.0%}   {sum(mine.values()):5.0%}   "
                f"{bytes_text(sent[i]):>10}   {whom or '-'}"
            )
        more = f"; {self.left_out:,} more spans had no room" if self.left_out else ""
        return "\n".join([*lines, f"{len(self.spans):,} spans in {self.seconds:.3g} s{more}"])

    @functools.cached_property
    def _start(self) -> float:
        return min((s.start for s in self.spans), default=0.0)

    def _of(self, instance: str) -> Iterator[Span]:
        return (s for s in self.spans if s.instance == instance)

    def _share(self, spans: Iterable[Span]) -> float:
        """Return the share of `seconds` that spans cover. Overlaps count once."""
        covered, until = 0.0, self._start
        for s in sorted(spans, key=lambda s: s.start):
            covered += max(0.0, s.end - max(s.start, until))
            until = max(until, s.end)
        return covered / (self.seconds or 1.0)

    @functools.cached_property
    def _ids(self) -> dict[str, dict[str, int]]:
        places = list(dict.fromkeys(map(_place, self.instances)))
        return {
            instance: {"pid": places.index(_place(instance)) + 1, "tid": number}
            for number, instance in enumerate(self.instances, 1)
        }

    def _names(self) -> Iterator[dict[str, Any]]:
        for instance in self.instances:
            ids = self._ids[instance]
            levels = ("process", _place(instance), ids["pid"]), ("thread", instance, ids["tid"])
            for level, name, order in levels:
                named = {"name": f"{level}_name", "args": {"name": name}}
                sorted_by = {"name": f"{level}_sort_index", "args": {"sort_index": order}}
                yield from ({"ph": "M", **event, **ids} for event in (named, sorted_by))

    def _event(self, s: Span) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": s.name if s.kind == "compute" else f"{s.kind} {s.name}",
            "cat": s.kind,
            "ts": self._micros(s.start),
            "dur": round(self._micros(s.end) - self._micros(s.start), 3),
            "args": {"bytes": s.nbytes, "iteration": s.iteration},
            **self._ids[s.instance],
        }

    def _arrows(self) -> Iterator[dict[str, Any]]:
        """Yield an arrow from every send to its receive.

        Sends and receives of the same name are matched in order.
        """
        ends: dict[tuple[str, str], deque[Span]] = defaultdict(deque)
        for s in sorted(self.spans, key=lambda s: s.start):
            ends[s.kind, s.name].append(s)
        sends = [s for (kind, _), spans in ends.items() if kind == "send" for s in spans]
        for number, send in enumerate(sends):
            receives = ends.get(("receive", send.name), deque())
            while receives and receives[0].end < send.start:
                receives.popleft()  # its send was not recorded
            if receives:
                yield from self._arrow(number, send, receives.popleft())

    def _arrow(self, number: int, send: Span, receive: Span) -> Iterator[dict[str, Any]]:
        about = {"name": "message", "cat": "flow", "id": number}
        # The arrow ends just before the end of the receive, which may begin long before the send.
        arrival = receive.end - 0.01 * (receive.end - max(send.start, receive.start))
        ids = self._ids[send.instance], self._ids[receive.instance]
        yield {"ph": "s", **about, "ts": self._micros(send.start), **ids[0]}
        yield {"ph": "f", "bp": "e", **about, "ts": self._micros(arrival), **ids[1]}

    def _micros(self, seconds: float) -> float:
        return round(1e6 * (seconds - self._start), 3)


def _place(instance: str) -> str:
    return instance.partition("/")[0]
