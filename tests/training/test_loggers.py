"""Loggers of runs: how they are named, resumed and refused, and what happens if one fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.front import Hocket

import hocket as library
from hocket.algorithms import PPO
from hocket.testing import difference
from hocket.training.folder import read_config

ROOT = Path(__file__).parents[2]
TABLE = f"{ROOT}/examples/own_logger.py:Table"
PPO_FLAGS = ("--num-envs", "8", "--length", "16", "--hidden", "8", "--minibatches", "2")
TRAIN = ("train", "ppo", *PPO_FLAGS, "--env-steps", "1280", "--save-every", "640")
MINE = """\
from hocket.report.loggers import About


class Notes:
    def __init__(self, fail=""):
        self.fail = fail

    def begin(self, about: About):
        self.out = (about.folder / "notes.txt").open("a")
        self.note(f"begin {about.title} at {about.last_step} of {about.progress.total_steps}")

    def row(self, step, numbers, seed):
        if self.fail == f"row-{step}":
            raise ConnectionError("the line is dead")

    def media(self, path):
        self.note(f"media {path}")

    def end(self, summary):
        self.note(f"end {summary.get('error', summary['finished'])}")
        self.out.close()
        if self.fail == "end":
            raise KeyError("lost")

    def note(self, text):
        print(text, file=self.out, flush=True)
"""


def table(folder: str) -> list[str]:
    lines = Path(folder, "numbers.csv").read_text().splitlines()
    return [line for line in lines if ",seconds," not in line]


def test_a_resumed_run_tells_the_same(hocket: Hocket) -> None:
    """Two loggers besides metrics.jsonl are named in flags and kept in the configuration."""
    hocket.well(*TRAIN, "--name", "whole", "--loggers", "tensorboard", TABLE, "--quiet")
    assert read_config(Path("runs/whole"))["loggers"] == ["tensorboard", TABLE]
    assert list(Path("runs/whole").glob("events.out.tfevents.*"))
    shutil.copytree("runs/whole", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/10")
    hocket.well("train", "--name", "cut", "--resume", "--quiet")
    assert len(list(Path("runs/cut").glob("events.out.tfevents.*"))) == 2
    assert table("runs/cut") == table("runs/whole")
    assert len(table("runs/whole")) >= 70
    whole, cut = library.load("runs/whole"), library.load("runs/cut")
    assert difference(whole.state, cut.state) == 0.0


def test_a_logger_that_fails_ends_the_run_with_its_name(hocket: Hocket) -> None:
    Path("mine.py").write_text(MINE)
    words = "mine.py:Notes:fail=row-768"
    done = hocket(*TRAIN, "--name", "cut", "--quiet", "--loggers", words, TABLE)
    assert done.code == 2 and "Traceback" not in done.err
    assert f"the logger `{words}` failed: ConnectionError: the line is dead (in row of " in done.err
    assert "mine.py:14)." in done.err
    assert "runs/cut has checkpoints: --resume continues from the last." in done.err
    begin, end = Path("runs/cut/notes.txt").read_text().splitlines()
    assert begin == "begin ppo on CartPole-v1 at 0 of 1280"
    assert end.startswith("end the logger `mine.py:Notes:fail=row-768` failed")
    # With a logger that works the run goes on, and other loggers have each row once.
    hocket.well("train", "--name", "cut", "--resume", "--quiet", "--loggers", "mine.py:Notes",
                TABLE, "--trace", "trace.json")  # fmt: skip
    notes = Path("runs/cut/notes.txt").read_text().splitlines()[2:]
    assert notes == ["begin ppo on CartPole-v1 at 640 of 1280", "media trace.json", "end True"]
    steps = [line.split(",")[0] for line in table("runs/cut") if ",policy_loss," in line]
    assert [int(step) for step in steps] == list(range(128, 1281, 128))


def test_one_that_fails_at_the_end_is_named_and_the_others_are_closed(hocket: Hocket) -> None:
    Path("mine.py").write_text(MINE)
    done = hocket(*TRAIN, "--name", "lost", "--quiet", "--loggers", "mine.py:Notes",
                  "mine.py:Notes:fail=end")  # fmt: skip
    assert done.code == 2
    assert "the logger `mine.py:Notes:fail=end` failed: KeyError: 'lost' (in end of" in done.err
    assert Path("runs/lost/notes.txt").read_text().splitlines().count("end True") == 2
    assert json.loads(Path("runs/lost/summary.json").read_text())["finished"]


MISTAKES = [
    (("tensorbord",), "unknown logger `tensorbord`. Did you mean `tensorboard`? Known: display, "),
    (("mine.py:Nots",), "unknown name `Nots` in `mine.py`. Did you mean `Notes`?"),
    (("mine.py:Notes:fial=1",), "the logger `mine.py:Notes` cannot be made: got an unexpected"),
    (
        ("mine.py:Half",),
        "`mine.py:Half` is no logger: it has no `media`, `end`. `hocket.report.l",
    ),
    (("mine.py:made:every=2",), "`mine.py:made` is not a class, so it takes no options"),
    (("mine.py:text",), "`mine.py:text` is no logger: it has no `begin`, `row`, `media`, `end`."),
    (("needs.py:It",), "the logger `needs.py:It` cannot be imported: No module named 'wandb_of_mi"),
]


@pytest.mark.parametrize(("loggers", "message"), MISTAKES, ids=[m[0][0] for m in MISTAKES])
def test_mistakes_are_refused_before_anything_starts(
    hocket: Hocket, loggers: tuple[str, ...], message: str
) -> None:
    half = "\n\nclass Half:\n    def begin(self): ...\n    def row(self): ...\n"
    Path("mine.py").write_text(MINE + half + "\n\ntext, made = 'a string', Notes()\n")
    Path("needs.py").write_text("import wandb_of_mine\n\n\nclass It: ...\n")
    done = hocket(*TRAIN, "--loggers", *loggers)
    assert done.code == 2 and message in done.err, done
    assert "Traceback" not in done.err and not Path("runs").exists()


def test_a_missing_package_is_named_by_its_extra(
    hocket: Hocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = hocket(*TRAIN, "--loggers", "tensorboard")
    assert done.code == 2 and "pip install 'hocket[tensorboard]'" in done.err, done
    assert not Path("runs").exists()


def test_an_installed_package_brings_its_own(tmp_path: Path) -> None:
    about = tmp_path / "notes-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[hocket.loggers]\nnotes = mine:Notes\n")
    (tmp_path / "mine.py").write_text(MINE)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    code += "from hocket.training.loggers import make_logger as m; print(m('notes:fail=end').fail)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "end\n"


def test_in_python_loggers_are_named_too() -> None:
    ppo = PPO(env=library.make("CartPole-v1"))
    for given in ("tensorboard", [print]):
        with pytest.raises(ValueError, match=r'loggers=\["tensorboard", "mine.py:Mine"\], found'):
            library.train(ppo, loggers=given)


def test_a_run_that_an_earlier_version_wrote_for_tensorboard(
    tmp_path: Path, hocket: Hocket
) -> None:
    with tarfile.open(Path(__file__).parent / "runs_0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "runs/fused/config.json"
    config = json.loads(path.read_text())
    assert config["tensorboard"] is False and "loggers" not in read_config(path)
    path.write_text(json.dumps({**config, "tensorboard": True}))
    assert read_config(path)["loggers"] == ["tensorboard"]
    hocket.well("train", "--name", "fused", "--resume", "--quiet")
    assert list(path.parent.glob("events.out.tfevents.*"))
    assert json.loads(path.read_text())["loggers"] == ["tensorboard"]
