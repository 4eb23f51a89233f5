"""A secret from a file or a pipe, which no engine stores, instead of an environment variable."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made import make_job

from edl import config
from edl.client import Job, submit
from edl.config import load
from edl.errors import ConfigError
from edl.host.host_agent import worker_environment
from edl.records import Host
from edl.secret_file import MAX_BYTES, open_to_others, read_secret

SECRET = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("EDL_SECRET", "EDL_SECRET_FILE", "HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return work


def written(path: Path, text: str = f"{SECRET}\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@contextmanager
def pipe(text: str, closed: bool = True) -> Iterator[str]:
    out, into = os.pipe()
    try:
        os.write(into, text.encode())
        if closed:
            os.close(into)
        yield f"/dev/fd/{out}"
    finally:
        os.close(out)
        if not closed:
            os.close(into)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_end_of_the_line_is_not_part_of_the_secret(tmp_path: Path, end: str, mode: int) -> None:
    assert read_secret(written(tmp_path / "file", SECRET + end, mode)) == SECRET


@pytest.mark.parametrize(
    ("mode", "owner", "is_open"),
    [
        (0o600, 1000, False),
        (0o400, 1000, False),
        (0o440, 1000, True),
        (0o604, 1000, True),
        (0o620, 1000, True),
        # As Kubernetes mounts a Secret for a pod with fsGroup, and systemd a credential.
        (0o440, 0, False),
        (0o640, 0, False),
        (0o444, 0, True),  # a Secret without `defaultMode`
        (0o460, 0, True),
        (0o450, 0, True),
    ],
)
def test_who_else_may_read_the_file(mode: int, owner: int, is_open: bool) -> None:
    assert open_to_others(stat.S_IFREG | mode, owner) == is_open


def test_a_link_is_judged_by_its_file(tmp_path: Path) -> None:
    """Kubernetes mounts each key of a Secret as a link."""
    link = tmp_path / "link"
    link.symlink_to(written(tmp_path / "file"))
    assert read_secret(link) == SECRET
    (tmp_path / "file").chmod(0o644)
    with pytest.raises(ConfigError, match=f"open to other users; `chmod 600 {link}` .*0644"):
        read_secret(link)


@pytest.mark.parametrize("path", ["/", "/dev/null"])
def test_what_is_neither_file_nor_pipe(path: str) -> None:
    with pytest.raises(ConfigError, match=f"{path} is neither a regular file nor a pipe"):
        read_secret(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe" * 32, "it is not text"),
        (b"", "does not hold a secret"),
        (b"\n", "does not hold a secret"),
        (b"x" * (MAX_BYTES + 1), "does not hold a secret"),
        (f"{SECRET}\n{OTHER}\n".encode(), "does not hold a secret"),
    ],
)
def test_what_is_no_secret(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=why) as error:
        read_secret(path)
    assert SECRET not in str(error.value)


def test_a_pipe_is_read_once_and_to_its_end() -> None:
    with pipe(f"{SECRET}\n") as path:
        assert read_secret(path) == SECRET
        assert load({"EDL_SECRET_FILE": path}).secret == SECRET  # what was read


def test_a_fifo_waits_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    writer = threading.Thread(target=lambda: path.write_text(f"{SECRET}\n"))
    writer.start()
    assert read_secret(path) == SECRET
    writer.join(10)


def test_a_fifo_that_others_may_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="open to other users"):
        read_secret(path)


def test_a_pipe_that_nobody_closes_is_not_waited_for_without_end(tmp_path: Path) -> None:
    silent = tmp_path / "fifo"
    os.mkfifo(silent, 0o600)
    with pytest.raises(ConfigError, match=r"nobody has written a secret .* 0\.01 s"):
        read_secret(silent, timeout_s=0.01)
    with pipe(SECRET, closed=False) as path, pytest.raises(ConfigError, match="closed it within"):
        read_secret(path, timeout_s=0.01)


def test_it_is_a_setting_like_any_other(tmp_path: Path, elsewhere: Path) -> None:
    path, second = written(tmp_path / "file"), written(tmp_path / "second", OTHER)
    settings = load({"EDL_SECRET_FILE": str(path)})
    assert (settings.secret, settings.secret_file) == (SECRET, str(path))
    (elsewhere / "edl.toml").write_text(f"secret_file = '{path}'")
    assert load({}).secret == SECRET
    assert load({"EDL_SECRET_FILE": str(second)}).secret == OTHER
    assert load({"EDL_SECRET_FILE": str(second)}, secret_file=str(path)).secret == SECRET
    assert SECRET not in repr(settings)


def test_beside_a_secret_it_must_be_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "file")
    assert load({"EDL_SECRET": SECRET, "EDL_SECRET_FILE": str(path)}).secret == SECRET
    assert load({}, secret=SECRET, secret_file=str(path)).secret == SECRET
    for environ, arguments in (
        ({"EDL_SECRET": OTHER, "EDL_SECRET_FILE": str(path)}, {}),
        ({}, {"secret": OTHER, "secret_file": str(path)}),
    ):
        with pytest.raises(ConfigError, match=f"{path} holds another secret than EDL_SECRET") as e:
            load(environ, **arguments)
        assert SECRET not in str(e.value)
        assert OTHER not in str(e.value)


def test_the_first_place_that_has_either_decides(tmp_path: Path, elsewhere: Path) -> None:
    """A worker has EDL_SECRET of its agent, and may run where an edl.toml names a file."""
    path = written(tmp_path / "file")
    (elsewhere / "edl.toml").write_text(f"secret_file = '{path}'")
    worker = load({"EDL_SECRET": OTHER})
    assert (worker.secret, worker.secret_file) == (OTHER, "")
    path.unlink()
    assert load({"EDL_SECRET": OTHER}).secret == OTHER  # the file is not even read
    with pytest.raises(ConfigError, match=f"cannot read the secret file {path}: No such file"):
        load({})
    written(path)
    assert load({"EDL_SECRET": OTHER}, secret_file=str(path)).secret == SECRET
    assert load({"EDL_SECRET_FILE": "/none"}, secret=OTHER).secret == OTHER


def test_a_worker_gets_the_secret_and_not_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_SECRET_FILE", str(written(tmp_path / "file")))
    assert "EDL_SECRET_FILE" not in config.environment_for_worker()
    environment = worker_environment(
        make_job("digits"), "127.0.0.1:1", Host("a", 1, "127.0.0.1", 1), SECRET, ""
    )
    assert environment["EDL_SECRET"] == SECRET
    assert "EDL_SECRET_FILE" not in environment


def test_the_python_client_takes_it(tmp_path: Path) -> None:
    path = written(tmp_path / "file", "short")
    with pytest.raises(ConfigError, match="does not hold a secret"):
        Job("digits", "127.0.0.1:1", secret_file=path).status()
    with pytest.raises(ConfigError, match="does not hold a secret"):
        submit(["python"], {"a": 1}, zookeeper="127.0.0.1:1", secret_file=path)
