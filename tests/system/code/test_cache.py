"""The cache of a node: complete folders only, shared by several processes, and bounded."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hocket.system.code.archive import Archive, archive_of, digest_of
from hocket.system.code.cache import CodeCache, cache_folder
from hocket.system.code.project import project_of


def archive(folder: Path, name: str, nbytes: int = 10) -> Archive:
    (folder / name).mkdir(parents=True)
    (folder / name / f"{name}.py").write_bytes(os.urandom(nbytes))
    return archive_of(project_of(folder / name))


def give(cache: CodeCache, made: Archive) -> Path:
    half = len(made.data) // 2
    cache.add(made.digest, made.data[:half])
    cache.add(made.digest, made.data[half:])
    (folder,) = cache.folders([made.digest])
    return Path(folder)


def test_a_second_run_finds_what_the_first_received(tmp_path: Path) -> None:
    made, root = archive(tmp_path, "a"), tmp_path / "cache"
    first, second = CodeCache(root), CodeCache(root)
    assert first.lacking([made.digest]) == [made.digest]
    assert os.listdir(folder := give(first, made)) == ["a.py"]
    assert second.lacking([made.digest]) == []
    assert second.folders([made.digest]) == [str(folder)] == [str(root / made.digest)]
    assert os.stat(root).st_mode & 0o777 == 0o700


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    made, cache = archive(tmp_path, "a"), CodeCache(tmp_path / "cache")
    with pytest.raises(ValueError, match=rf"digest {made.digest[:12]} has arrived damaged"):
        give(cache, Archive(made.digest, made.data[:-1] + b"?"))
    assert not (tmp_path / "cache").exists()


def test_a_wrong_archive_leaves_nothing(tmp_path: Path) -> None:
    """Its digest is right, though it is no zip."""
    cache = CodeCache(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    with pytest.raises(ValueError, match="these 4 bytes are no archive"):
        give(cache, Archive(digest_of(b"text"), b"text"))
    assert os.listdir(tmp_path / "cache") == []


def test_two_at_once(tmp_path: Path) -> None:
    """Both lack the code, both receive it, and both unpack it at the same time."""
    made, root = archive(tmp_path, "a", 1 << 20), tmp_path / "cache"
    caches = [CodeCache(root) for _ in range(4)]
    assert all(cache.lacking([made.digest]) for cache in caches)
    together, folders = threading.Barrier(4), []

    def unpack(cache: CodeCache) -> None:
        cache.add(made.digest, made.data)
        together.wait()
        folders.extend(cache.folders([made.digest]))

    threads = [threading.Thread(target=unpack, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [str(root / made.digest)] * 4
    assert os.listdir(root) == [made.digest]


def test_old_folders_make_room(tmp_path: Path) -> None:
    """The one used longest ago goes first; one that a process uses stays."""
    root = tmp_path / "cache"
    a, b, c, d = (archive(tmp_path, name, 1000) for name in "abcd")
    old = CodeCache(root)
    for age, made in ((9, a), (8, b), (7, c)):
        folder = give(old, made)
        old.close()
        os.utime(folder, (1e9 - age, 1e9 - age))
    user = CodeCache(root)
    assert user.lacking([b.digest]) == []
    os.utime(root / b.digest, (1, 1))  # the oldest use, but it is used now
    new = CodeCache(root, max_nbytes=2500)
    assert new.lacking([d.digest]) == [d.digest]
    give(new, d)
    assert set(os.listdir(root)) == {b.digest, d.digest}
    assert new.lacking([a.digest, c.digest]) == [a.digest, c.digest]


def test_using_a_folder_keeps_it_from_being_the_oldest(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    a, b, c = (archive(tmp_path, name, 1000) for name in "abc")
    old = CodeCache(root)
    for age, made in ((9, a), (8, b)):
        os.utime(give(old, made), (1e9 - age, 1e9 - age))
    old.close()
    CodeCache(root).lacking([a.digest])
    give(CodeCache(root, max_nbytes=2500), c)
    assert set(os.listdir(root)) == {a.digest, c.digest}


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/me")
    assert cache_folder() == Path("/scratch/me/hocket/code")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hocket" / "code"
