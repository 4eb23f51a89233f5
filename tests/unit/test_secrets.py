"""Where a job's secret is kept, and what is no secret."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from edl.config import Config, load
from edl.errors import ConfigError
from edl.host.workers import log_directory
from edl.job.daemon import Daemon
from edl.ring.gloo import gloo_ring
from edl.secret_file import read_secret
from edl.worker.shared_state import SharedState
from edl.zookeeper.access import (
    CLUSTERS,
    KEPT,
    TRIED,
    announce,
    candidates,
    keep,
    new_secret,
    stored,
)

SECRET = "0123456789abcdef" * 4


def test_a_secret_is_32_random_bytes() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(len(bytes.fromhex(one)) == 32 for one in made)


def test_it_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    path = keep(tmp_path, "digits", SECRET)
    assert path == tmp_path / "jobs" / "digits" / "secret"
    assert path.read_text() == f"{SECRET}\n"
    assert read_secret(path) == SECRET
    files = list(path.parent.iterdir())
    assert {file.name for file in files} == {"secret", "secrets"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_earlier_ones_are_tried_after_the_newest(tmp_path: Path) -> None:
    made = [new_secret() for _ in range(KEPT + 5)]
    for one in made[:-1]:
        keep(tmp_path, "digits", one)
    announce(tmp_path, "digits", made[-1])  # its creator died before the job existed
    tried = candidates(tmp_path, "digits", None)
    assert tried == [made[-2], made[-1], *made[-3 : -1 - TRIED : -1]]
    assert candidates(tmp_path, "digits", SECRET) == [SECRET, *tried]
    assert candidates(tmp_path, "letters", None) == []
    assert len((tmp_path / "jobs/digits/secrets").read_text().split()) == KEPT
    keep(tmp_path, "digits", made[-1])
    assert candidates(tmp_path, "digits", made[-1])[0] == made[-1]


def test_those_of_clusters_are_kept_apart(tmp_path: Path) -> None:
    path = keep(tmp_path, "lab", SECRET, CLUSTERS)
    assert path == tmp_path / "clusters" / "lab" / "secret"
    assert candidates(tmp_path, "lab", None, CLUSTERS) == [SECRET]
    assert candidates(tmp_path, "lab", None) == []
    assert stored(tmp_path, ["lab", "lib"], CLUSTERS) == {"lab"}
    assert stored(tmp_path, ["lab", "lib"]) == set()


def test_it_outlives_the_logs_of_its_job(tmp_path: Path) -> None:
    path = keep(tmp_path, "old", SECRET)
    old = log_directory(tmp_path, "old", fresh=True)
    (old / "a.log").touch()
    log_directory(tmp_path, "new", fresh=True, kept_jobs=0, kept_s=-1.0)
    assert not old.exists()
    assert path.is_file()


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (SECRET, 0o644, "is open to other users; `chmod 600"),
        (SECRET, 0o620, "is open to other users"),
        ("", 0o600, "does not hold a secret"),
        ("short", 0o600, "does not hold a secret"),
        (f"{SECRET} {SECRET}", 0o600, "does not hold a secret"),
        (None, 0o600, "cannot read the secret file"),
    ],
)
def test_a_file_that_is_no_secret(tmp_path: Path, text: str | None, mode: int, why: str) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=why) as error:
        read_secret(path)
    assert SECRET not in str(error.value)


def test_the_setting_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load({"EDL_SECRET": SECRET})
    assert settings.secret == SECRET
    assert SECRET not in repr(settings)
    with pytest.raises(ConfigError, match="EDL_SECRET has 5 characters and needs 32") as error:
        load({"EDL_SECRET": "abcde"})
    assert "abcde" not in str(error.value)
    for no_word in (f"{SECRET}\n", f"{SECRET} {SECRET}"):  # kept, it would be another one
        with pytest.raises(ConfigError, match="EDL_SECRET has white space in it") as error:
            load({"EDL_SECRET": no_word})
        assert SECRET not in str(error.value)


def test_no_address_means_every_network() -> None:
    with pytest.raises(ConfigError, match="every network of this machine"):
        Config(address="0.0.0.0")
    assert Config(address="10.0.0.5").address == "10.0.0.5"
    assert Config(address="worker-3").address == "worker-3"


def test_a_worker_without_it_says_where_it_comes_from() -> None:
    config = Config(job="digits", zookeeper="127.0.0.1:1")
    with pytest.raises(ConfigError, match="EDL_SECRET is missing: workers are started"):
        Daemon(config, SharedState(), gloo_ring(None, config.own_address))
