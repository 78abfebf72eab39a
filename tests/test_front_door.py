"""What a newcomer meets: the README, the guides, the examples and the command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/algorithms.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_code_block_runs(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page")  # classes look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), module.__dict__)
    assert capsys.readouterr().out


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert (ROOT / page).parent.joinpath(link).exists(), (page, link)
