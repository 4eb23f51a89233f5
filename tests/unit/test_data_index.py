"""The cache of indexes: what is kept, and what is made again because it is not sound."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edl.data.files import Index, Indexed, Skipped, index_of
from edl.errors import DataError

INDEX = Index(
    {"starts": np.array([0, 5, 2**40]), "none": np.empty(0, np.int64)},
    {"names": {"x": "é"}},
    (Skipped(3, 4, "why"), Skipped(9, 1, "that")),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edl" / "data"


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    return str(file)


class Maker:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, path: str, size: int) -> Index:
        self.made += 1
        return INDEX


def check(found: Indexed, path: str) -> None:
    assert found.path == path
    assert (found.stamp.size, found.stamp.mtime_ns) == (7, os.stat(path).st_mtime_ns)
    assert found.index.facts == INDEX.facts
    assert found.index.skipped == INDEX.skipped
    assert found.index.arrays.keys() == INDEX.arrays.keys()
    for name, array in INDEX.arrays.items():
        assert found.index.arrays[name].dtype == np.int64
        assert np.array_equal(found.index.arrays[name], array)


def index_file(cache: Path) -> Path:
    (file,) = cache.glob("*.index")
    return file


def test_an_index_is_made_once(cache: Path, path: str) -> None:
    make = Maker()
    first = index_of(path, "kind", make)
    again = index_of(path, "kind", make)
    check(first, path)
    check(again, path)
    assert first.index.digest() == again.index.digest() == INDEX.digest()
    assert make.made == 1
    index_of(path, "kind with another option", make)
    assert make.made == 2
    assert not list(cache.glob("*.new"))


def test_a_file_under_another_name_has_the_same_index(path: str, cache: Path) -> None:
    make = Maker()
    index_of(path, "kind", make)
    link = Path(path).with_name("link")
    link.symlink_to(path)
    assert index_of(str(link), "kind", make).path == str(link)
    assert make.made == 1


def touch(path: str, _cache: Path) -> None:
    os.utime(path, ns=(1, 1))


def torn(_path: str, cache: Path) -> None:
    os.truncate(index_file(cache), index_file(cache).stat().st_size - 1)


def empty(_path: str, cache: Path) -> None:
    os.truncate(index_file(cache), 0)


def flipped(_path: str, cache: Path) -> None:
    content = bytearray(index_file(cache).read_bytes())
    content[-9] ^= 1
    index_file(cache).write_bytes(content)


def of_another_version(_path: str, cache: Path) -> None:
    content = index_file(cache).read_bytes()
    index_file(cache).write_bytes(content.replace(b"edl-index[1,", b"edl-index[0,"))


def of_another_file(path: str, cache: Path) -> None:
    content = index_file(cache).read_bytes()
    other = Path(path).with_name("fake")
    index_file(cache).write_bytes(content.replace(path.encode(), os.fsencode(other)))


@pytest.mark.parametrize(
    "spoil", [touch, torn, empty, flipped, of_another_version, of_another_file]
)
def test_one_that_is_not_sound_is_made_again(
    cache: Path, path: str, spoil: Callable[[str, Path], None]
) -> None:
    make = Maker()
    index_of(path, "kind", make)
    before = index_file(cache).read_bytes()
    spoil(path, cache)
    assert spoil is touch or index_file(cache).read_bytes() != before
    check(index_of(path, "kind", make), path)
    check(index_of(path, "kind", make), path)
    assert make.made == 2


def test_a_cache_that_cannot_be_used_costs_time_only(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    make = Maker()
    check(index_of(path, "kind", make), path)
    check(index_of(path, "kind", make), path)
    assert make.made == 2


def test_a_user_without_a_home_directory_has_no_cache(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    check(index_of(path, "kind", Maker()), path)


def test_an_index_that_cannot_be_written_leaves_nothing(cache: Path, path: str) -> None:
    make = Maker()
    index_of(path, "kind", make)
    file = index_file(cache)
    file.unlink()
    file.mkdir()  # nothing can be renamed to this
    check(index_of(path, "kind", make), path)
    assert not list(cache.glob("*.new"))


def test_what_a_killed_process_has_left_is_removed(cache: Path, path: str) -> None:
    make = Maker()
    index_of(path, "kind", make)
    file = index_file(cache)
    (cache / f"{file.stem}.0123.new").write_bytes(file.read_bytes()[:20])
    other = cache / "another.0123.new"
    other.touch()
    file.unlink()
    check(index_of(path, "kind", make), path)
    assert list(cache.glob("*.new")) == [other]


def test_a_file_that_changes_meanwhile_is_an_error(cache: Path, path: str) -> None:
    def make(path: str, size: int) -> Index:
        Path(path).write_bytes(b"more content")
        return INDEX

    with pytest.raises(DataError, match=r"file was changed while it was being indexed"):
        index_of(path, "kind", make)
    assert not list(cache.glob("*.index"))


def test_a_file_that_cannot_be_read_is_an_error(cache: Path, path: str) -> None:
    def make(path: str, size: int) -> Index:
        raise OSError(5, "Input/output error")

    with pytest.raises(DataError, match=r"cannot read .*/file: Input/output error"):
        index_of(path, "kind", make)
    with pytest.raises(DataError, match="No such file"):
        index_of(path + "-none", "kind", make)


def test_a_lock_that_is_held_for_too_long_is_not_waited_for(cache: Path, path: str) -> None:
    make = Maker()
    index_of(path, "kind", make)
    index_file(cache).unlink()
    (lock,) = cache.glob("*.lock")
    with lock.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        check(index_of(path, "kind", make, lock_wait_s=0.0), path)
    assert make.made == 2
