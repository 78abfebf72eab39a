from __future__ import annotations

from pathlib import Path

import pytest

from hocket.system import native


def test_without_the_library_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "PATH", tmp_path / "libhocket.so")
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler.* `apt-get install g\+\+`"):
        native.library.__wrapped__()


def test_the_library_is_loaded_once() -> None:
    assert native.library() is native.library()
