"""Rates between nodes are kept for later commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.cluster.rates import Rate, measured_rates, save_rates


def test_the_last_rates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert measured_rates("hosts:/a.toml") == {}
    slow, fast = (Rate("n1", "n2", 1e-4, rate, 1500) for rate in (1e8, 1e9))
    save_rates("hosts:/a.toml", [slow, Rate("n2", "n1", 1e-4, 1e8)])
    path = save_rates("hosts:/a.toml", [fast])
    assert measured_rates("hosts:/a.toml") == {("n1", "n2"): fast}
    assert measured_rates("hosts:/b.toml") == {}
    path.write_text("{}")
    assert measured_rates("hosts:/a.toml") == {}, "a file of another version is as good as none"
