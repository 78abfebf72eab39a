"""Hosts files: what they say, and what is wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hocket.cluster.hosts_file import Host, read_hosts


def hosts(tmp_path: Path, text: str) -> tuple[Host, ...]:
    (tmp_path / "hosts.toml").write_text(text)
    return read_hosts(tmp_path / "hosts.toml")


def test_defaults(tmp_path: Path) -> None:
    assert hosts(tmp_path, "[n1]\n[n2]\n") == (
        Host("n1", "n1", python=sys.executable),
        Host("n2", "n2", python=sys.executable),
    )


def test_all_keys(tmp_path: Path) -> None:
    text = """
python = "/opt/python"
cores = 8
[n1]
ssh = "me@10.0.0.1"
address = "eth1"
before = "module load cuda"
devices = ["gpu:0", "gpu:1"]
[n2]
python = "/other/python"
"""
    assert hosts(tmp_path, text) == (
        Host("n1", "me@10.0.0.1", "eth1", "/opt/python", "module load cuda", 8, ("gpu:0", "gpu:1")),
        Host("n2", "n2", python="/other/python", cores=8),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no machine: add one, as in\n[n1]"),
        ("[n1\n", "is no TOML: "),
        ("[n1]\n[n1]\n", "line 2"),
        ("[n1]\npyhton = '/py'\n", "unknown key `pyhton` in the hosts file `FILE`, table [n1]. Did "
         "you mean `python`?"),
        ("ssh = 'n1'\n[n1]\n", "`ssh` above its first table"),
        ("core = 8\n[n1]\n", "above its first table. Did you mean `cores`?"),
        ("[n1]\ncores = 0\n", "`cores` must be a number from 1 on, found 0"),
        ("[n1]\ncores = true\n", "`cores` must be a number from 1 on, found True"),
        ("[n1]\ndevices = 'gpu:0'\n", "`devices` must be a list of devices, such as"),
        ("[n1]\ndevices = ['gpu']\n", "`devices` must be a list of devices, such as"),
        ("[n1]\npython = 3\n", "table [n1]: `python` must be a text, found 3"),
        ("[n1]\nssh = '-oProxyCommand=x'\n", "`ssh` is a host or USER@HOST"),
        ("['a/b']\n", "no `/` and no `:`"),
        ("['-x']\n", "does not begin with `-`"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match="the hosts file") as error:
        hosts(tmp_path, text)
    assert said.replace("FILE", str(tmp_path / "hosts.toml")) in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory"):
        read_hosts(tmp_path / "no.toml")


def test_the_example() -> None:
    first, second = read_hosts(Path(__file__).parents[2] / "examples/hosts.toml")
    assert first == Host("n1", "n1", python="/opt/venv/bin/python")
    assert second.devices == ("gpu:0", "gpu:1") and second.cores == 8
