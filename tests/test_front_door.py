"""What a newcomer meets: the README, the guides, the examples and the command line."""

from __future__ import annotations

import re
import subprocess
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


def hocket(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hocket.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_train() -> None:
    done = hocket("train", "ppo", "--env-steps", "20000", "--num-envs", "8")
    assert done.returncode == 0, done.stderr
    assert re.search(r"ppo on CartPole-v1 +[\d,]+ steps +return +[\d.]+", done.stdout)
    assert re.search(r"return [\d.]+ \(last 100 episodes\) after [\d,]+ steps", done.stdout)


def test_plan_starts_nothing() -> None:
    done = hocket("plan", "dqn")
    assert done.returncode == 0, done.stderr
    assert "anakin: act, env, " in done.stdout
    assert "nothing crosses" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "pppo"), "unknown algorithm `pppo`. Did you mean `ppo`?"),
        (("train", "ppo", "--env", "CartPol-v1"), "Did you mean `CartPole-v1`?"),
        (("train", "ppo", "--distribute", "anakinn"), "Did you mean `anakin`?"),
        (("train", "dqn", "--env", "Pendulum-v1"), "DQN needs one discrete action"),
    ],
)
def test_mistakes_get_a_sentence(arguments: tuple[str, ...], message: str) -> None:
    done = hocket(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
