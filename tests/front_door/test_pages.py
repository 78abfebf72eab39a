"""Every block of code and every hocket command in the README and the docs runs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.front import Hocket

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
# A plot needs episodes that have ended, and those of some environments take 200 or 500 steps.
LONG = ("Acrobot-v1", "Pendulum-v1")
FEW = {"--env-steps": "2400", "--seeds": "2"}
BLOCK = re.compile(r"```(python|bash)\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer((ROOT / page).read_text())]


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_every_block_runs(page: str, hocket: Hocket, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("page")  # classes look up their module by name
    monkeypatch.setitem(sys.modules, "page", module)
    for kind, text in blocks(page):
        if kind == "bash":
            for command in commands(text):
                hocket.well(*command)
        else:
            if file := re.match(r"# (\w+\.py)\n", text):
                Path(file[1]).write_text(text)
            text = text.replace("iterations=20)", "iterations=2)")
            exec(compile(text, page, "exec"), module.__dict__)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the hocket commands of a block, each shortened for a test."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["hocket"]:
            yield shortened(words[1:])


def shortened(words: list[str]) -> list[str]:
    """Limit a run to a few iterations and two seeds, and leave everything else as written."""
    if words[0] != "train" or "--resume" in words:
        return words
    words = [f"{word}:max_steps=100" if word in LONG else word for word in words]
    for flag, value in FEW.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    if "--env-steps" not in words:
        words = [*words, "--env-steps", FEW["--env-steps"]]
    # Use one of the four devices that tests have, for half the compilation time.
    is_hosted = any(word.startswith(("gymnasium:", "envpool:")) for word in words)
    few_devices = "sebulba:actors=1" if is_hosted else "anakin:devices=1"
    return words if "--distribute" in words else [*words, "--distribute", few_devices]


def test_links_and_pictures_are_there() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r'src="([^":]+)"', text):
            assert (ROOT / page).parent.joinpath(link).exists(), (page, link)


def test_the_second_command_is_what_ci_runs() -> None:
    install = "pip install -e '.[test]' && scripts/test"
    assert install in (ROOT / "README.md").read_text()
    ci = (ROOT / ".ci/run").read_text()
    assert "-e '.[test]'" in ci and "scripts/test" in ci
