"""Checkpoints at a URL: in memory here; in a local S3 server, integration/test_checkpoint_s3.py."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from test_checkpoints import Start

from edl.checkpoint import format as files
from edl.checkpoint.format import owner_of
from edl.checkpoint.location import RemotePath, file_bytes, location
from edl.checkpoint.store import LoggedSteps, check_resumable
from edl.checkpoint.weights import newest
from edl.cli.main import invoke
from edl.config import Config
from edl.errors import CheckpointError, UsageError
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import JobOfOne
from edl.worker.progress import LoaderProgress
from edl.worker.shared_state import SharedState

URL = "memory://runs/17"


@pytest.fixture
def remote() -> Iterator[RemotePath]:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    place = location(URL)
    assert isinstance(place, RemotePath)
    yield place
    memory.store.clear()


def contents(place: RemotePath) -> dict[str, Any]:
    return dict(place.system.store)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("runs/17", "runs/17"),
        ("/runs::17", "/runs::17"),
        ("file:///runs/a%20b", "/runs/a b"),
        ("local:///runs/17", "/runs/17"),
        ("file://runs/17", "runs/17"),
        ("file:///runs/a#1?b", "/runs/a#1?b"),
        ("file://localhost/runs/17", "/runs/17"),
        ("a:b/17", "a:b/17"),
    ],
)
def test_a_local_path(text: str, path: str) -> None:
    assert location(text) == Path(path)
    assert location(Path(path)) == Path(path)


@pytest.mark.parametrize("url", ["s3://bucket/runs/17", "simplecache::gs://b/x", "file:///runs/17"])
def test_a_url_that_pathlib_has_shortened_is_refused(url: str) -> None:
    for shortened in (Path(url), str(Path(url))):
        with pytest.raises(UsageError, match="pathlib has taken slashes from a URL: give the text"):
            location(shortened)


def test_a_url_is_taken_apart(remote: RemotePath) -> None:
    file = remote / "step-1.safetensors"
    assert (str(file), file.name, file.parent) == (f"{URL}/step-1.safetensors", file.name, remote)
    assert location(f"{URL}/") == remote == remote.absolute()


def test_a_job_is_saved_and_resumed(remote: RemotePath) -> None:
    first = Start(remote)
    for step in (0, 10, 20, 30):
        assert first.save(step) == ""
    names = [path.name for path in files.checkpoint_files(remote)]
    assert names == [f"step-{step:012d}.safetensors" for step in (30, 20, 10)], "keep=3"
    there = sorted(path.rpartition("/")[2] for path in contents(remote))
    assert there == [".edl-owner", *reversed(names)], "no probe and no half of a file is left"
    again = Start(remote, run="r2", resume=remote)
    assert again.restore() == 30
    assert (again.replica.value, again.saved) == (30, [30])
    with pytest.raises(CheckpointError, match=f"{URL} has checkpoints of another run"):
        Start(remote, run="r3").restore()


def test_a_ring_claims_a_directory_with_a_url(remote: RemotePath) -> None:
    start = Start(remote)
    start.checkpoints.writer.take_over(3)
    owner = owner_of(remote)
    assert owner is not None
    assert (owner.run, owner.generation) == ("r1", 3)


def test_the_newest_good_one_is_found(remote: RemotePath) -> None:
    first = Start(remote)
    for step in (10, 20, 30):
        first.save(step)
    file = files.path_of(remote, 30)
    whole = remote.system.cat_file(file.within)
    remote.system.pipe_file(file.within, whole[:-1])
    remote.system.pipe_file(files.path_of(remote, 20).within, b"")
    again = Start(remote)
    assert again.restore() == 10
    reasons = [reason for _, _, reason in again.logged]
    assert reasons[0].startswith(f"{file} is torn: it has {len(whole) - 1} bytes")
    assert "step-000000000020" in reasons[1]
    assert newest(remote).manifest.step == 10
    remote.system.pipe_file(file.within, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"step-000000000030\.safetensors is damaged"):
        files.read_checkpoint(file)


def test_nothing_is_there(remote: RemotePath) -> None:
    assert files.checkpoint_files(remote) == []
    assert Start(remote).restore() is None
    with pytest.raises(CheckpointError, match=f"there is no checkpoint in {URL}"):
        check_resumable(remote)
    with pytest.raises(CheckpointError, match=r"step-000000000001.safetensors cannot be read"):
        files.read_manifest(files.path_of(remote, 1))


def test_a_file_does_not_appear_if_its_check_fails(remote: RemotePath) -> None:
    def check() -> None:
        raise CheckpointError("another start has the directory")

    with pytest.raises(CheckpointError, match="another start"):
        (remote / "x").write_whole([b"abc"], check)
    assert contents(remote) == {}


def test_a_file_system_that_defers_the_end_of_a_file(tmp_path: Path) -> None:
    """As object stores do; fsspec's own view of local files does, too."""
    system = fsspec.filesystem("file", skip_instance_cache=True)
    place = RemotePath("store://runs", str(tmp_path), system)
    seen: list[list[str]] = []
    assert (place / "x").write_whole([b"ab", b"c"], lambda: seen.append(place.names())) == 3
    assert ((place / "x").read_text(), seen) == ("abc", [[]])

    def refuse() -> None:
        raise CheckpointError("another start has the directory")

    with pytest.raises(CheckpointError, match="another start"):
        (place / "x").write_whole([b"new"], refuse)
    assert ((place / "x").read_text(), place.names()) == ("abc", ["x"])
    assert not system.transaction.files, "it keeps no file that was written"
    (place / "x").unlink()
    (place / "x").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (place / "x").unlink()


def test_an_error_of_the_library_of_a_file_system_is_said(
    remote: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as botocore's, which is no OSError; training goes on."""

    class NoCredentialsError(Exception):
        pass

    def refuse(*_arguments: object, **_options: object) -> None:
        raise NoCredentialsError("unable to locate credentials")

    start = Start(remote)
    monkeypatch.setattr(type(remote.system), "_open", refuse)
    said = start.save(10)
    assert said.startswith("the checkpoint of step 10 was not written: NoCredentialsError: unable")
    assert str(remote) in said
    sentence = rf"edl.checkpoint: cannot write into {URL}: NoCredentialsError: unable to locate"
    with pytest.raises(CheckpointError, match=sentence):
        Start(remote)


def test_a_file_that_arrived_incomplete_is_an_error(
    remote: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(remote.system), "info", lambda *_: {"size": 2})
    with pytest.raises(OSError, match="3 bytes were written, and 2 are there") as caught:
        (remote / "x").write_whole([b"abc"], lambda: None)
    assert caught.value.errno == errno.EIO


def test_logged_steps_are_not_kept_at_a_url(remote: RemotePath) -> None:
    steps = LoggedSteps(remote)
    steps.put("loss", 3)
    steps.forget()
    assert (steps.read(), contents(remote)) == ({}, {})


def test_sizes(remote: RemotePath, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    (remote / "x").write_whole([b"ab", memoryview(b"cd")], lambda: None)
    assert (file_bytes(tmp_path / "x"), file_bytes(remote / "x")) == (3, 4)
    assert (remote / "x").modified_s > 0


def test_the_verbs_take_a_url(remote: RemotePath, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["checkpoint", "list", URL]) == 2
    assert f"{URL} is no directory" in capsys.readouterr().err
    Start(remote).save(10)
    assert invoke(["checkpoint", "list", URL]) == 0
    assert "step-000000000010.safetensors" in capsys.readouterr().out


def test_without_fsspec_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    sentence = r"s3://bucket/run needs the package fsspec, .*: pip install 'edl-horovod\[fsspec\]'"
    with pytest.raises(UsageError, match=sentence):
        location("s3://bucket/run")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nowhere://x", "nowhere://x cannot be opened: Protocol not known: nowhere; write a local"),
        ("dropbox://x", "dropbox://x needs a further package: "),
    ],
)
def test_a_url_that_cannot_be_opened_is_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        location(url)


def test_the_memory_of_one_process_is_no_place_for_a_job_of_several(remote: RemotePath) -> None:
    config = Config()
    coordinator, shared = JobOfOne(config), SharedState()
    checkpointing = Checkpointing(config, shared, LoaderProgress(), coordinator)
    coordinator.is_shared = True
    with pytest.raises(UsageError, match="lies in the memory of one process"):
        checkpointing.attach(remote, 300.0, 3)
