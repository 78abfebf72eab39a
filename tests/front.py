"""Calls the command line as a person does, in this process: the exit code and what was printed."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from hocket.cli.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Hocket:
    """`hocket("train", "ppo")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["hocket", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        out, err = map(str, self._capsys.readouterr())
        return Done(code, out, err)

    def well(self, *arguments: str) -> str:
        """The same where nothing may go wrong: what was printed."""
        done = self(*arguments)
        assert done.code == 0, done
        return done.out
