"""Which files a source is made of, and how a process reads them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from edl.data.files import PerProcess, Readable, Stamp, resolve
from edl.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "[x].txt", "x.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(files: tuple[str, ...], folder: Path) -> list[str]:
    return [os.path.relpath(file, folder) for file in files]


def test_the_order_does_not_depend_on_how_files_are_named(folder: Path) -> None:
    expected = ["a.txt", "b.txt", "sub/c.txt"]
    one = resolve([folder / "sub/c.txt", str(folder / "b.txt"), folder / "a.txt"])
    other = resolve([str(folder / "[ab].txt"), str(folder / "sub" / "*")])
    assert names(one, folder) == names(other, folder) == expected


def test_a_pattern_leaves_folders_out_and_may_go_into_them(folder: Path) -> None:
    assert "sub" not in names(resolve(str(folder / "*")), folder)
    assert "sub/c.txt" in names(resolve(str(folder / "**" / "*.txt")), folder)


def test_a_pattern_names_a_file_once_on_however_many_ways(folder: Path) -> None:
    assert names(resolve(str(folder / "**" / "**" / "c.txt")), folder) == ["sub/c.txt"]


def test_an_existing_name_is_no_pattern(folder: Path) -> None:
    assert names(resolve(folder / "[x].txt"), folder) == ["[x].txt"]


def test_a_relative_path_becomes_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert resolve("a.txt") == (str(folder / "a.txt"),)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "no files are named"),
        ("none.txt", "there is no file .*none.txt on this host"),
        ("none-*.txt", "no file matches .*none-"),
        ("/dev/null", "/dev/null is no regular file"),
        ("sub", "sub is a folder; name its files, like .*sub/\\*"),
        (["a.txt", "a.txt"], "a.txt is named twice; its records would be trained twice"),
        (["a.txt", "?.txt"], "a.txt is named twice"),
        (["a.txt", "link.txt"], r"link.txt is named twice \(it is .*a.txt, too\)"),
    ],
)
def test_what_cannot_be_resolved_gets_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: str | list[str], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    Path("link.txt").symlink_to("a.txt")
    with pytest.raises(DataError, match=sentence):
        resolve(given)


def test_a_file_that_changed_is_not_read(folder: Path) -> None:
    path = folder / "a.txt"
    stamp = Stamp.of(str(path))
    assert Readable(str(path), stamp).read(2, 3) == b"txt"
    os.utime(path, ns=(0, 5))
    with pytest.raises(DataError, match=r"a.txt has changed .* 5 bytes and has 5 of a later time"):
        Readable(str(path), stamp)
    path.write_text("longer than before")
    with pytest.raises(DataError, match=r"it had 5 bytes and has 18; start the job again"):
        Readable(str(path), stamp)


def test_a_file_that_is_cut_while_it_is_read_is_named_with_the_byte(folder: Path) -> None:
    path = folder / "a.txt"
    file = Readable(str(path), Stamp.of(str(path)))
    os.truncate(path, 3)
    with pytest.raises(DataError, match=r"a.txt was cut at byte 3 while it was read"):
        file.read(1, 4)


def test_a_file_is_closed_with_its_last_reader(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened: PerProcess[Readable] = PerProcess(2)
    for name in ("a.txt", "b.txt", "x.txt", "sub/c.txt"):
        path = str(folder / name)
        opened.get(name, lambda path=path: Readable(path, Stamp.of(path)))
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del opened
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_used_longest_ago_gives_way() -> None:
    made: list[str] = []

    def get(key: str) -> str:
        return held.get(key, lambda: made.append(key) or key)

    held: PerProcess[str] = PerProcess(5, len)
    for key in ("aa", "bb", "aa", "cc", "aa", "bb"):
        assert get(key) == key
    assert made == ["aa", "bb", "cc", "bb"]
    assert get("longer than all") == "longer than all"
    assert get("longer than all") == "longer than all"
    assert made[4:] == ["longer than all"]


def test_a_fork_and_a_copy_open_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    held: PerProcess[int] = PerProcess(5)
    assert held.get("pid", os.getpid) == held.get("pid", lambda: -1) == os.getpid()
    copy: PerProcess[int] = pickle.loads(pickle.dumps(held))
    assert copy.get("pid", lambda: -1) == -1
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert held.get("pid", os.getpid) == 1
