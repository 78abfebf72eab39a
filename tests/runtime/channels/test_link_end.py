"""The parts that the ends of our transports share: counts, and the carrier between them."""

from __future__ import annotations

from typing import Any

from hocket.runtime.channels.link_end import READER, WRITER, LinkEnd


class Carrier:
    """A carrier of which somebody else says how long the two ends have waited."""

    def __init__(self) -> None:
        self.waited_ns, self.closed = [3, 5], 0

    def close(self) -> None:
        self.closed += 1


class Writer(LinkEnd[Any]):
    side = WRITER


def test_each_end_has_waited_for_itself() -> None:
    carrier = Carrier()
    writer, reader = Writer(carrier), LinkEnd(carrier)
    assert (writer.waited_ns, reader.waited_ns) == (3, 5)
    carrier.waited_ns[READER] = 9
    assert (writer.waited_ns, reader.waited_ns) == (3, 9)
    assert writer.sent == writer.taken == reader.sent == reader.taken == 0


def test_closing_an_end_closes_what_is_between_them() -> None:
    carrier = Carrier()
    for count, end in enumerate((Writer(carrier), LinkEnd(carrier)), start=1):
        end.settle()
        end.close()
        assert carrier.closed == count
