"""Calls the command line in this process, and returns the exit code and the output."""

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
    """A caller of the command line: `hocket("train", "ppo")`."""

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
        """Run a command that must succeed, and return its output."""
        done = self(*arguments)
        assert done.code == 0, done
        return done.out
