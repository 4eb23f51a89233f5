"""A message names the jobs of the user who reads it, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made import make_job

from edl.client.connection import choose_job
from edl.errors import AccessDenied, UnknownJob, UsageError
from edl.zookeeper.access import Access, keep, stored
from edl.zookeeper.nodes import unknown_job
from edl.zookeeper.paths import JOBS, JobPaths
from edl.zookeeper.reads import Issue, encode

MINE, ALSO_MINE, THEIRS = "m" * 64, "a" * 64, "t" * 64


class Session:
    def __init__(self, *identities: Access, **secrets: str) -> None:
        self.identities = identities
        self.secrets = secrets

    def identify(self, *known: Access) -> None:
        self.identities += known

    def read_all(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        return [issue(self) for issue in issues]

    read_open = read_all

    def get_children_async(self, path: str, watch: None) -> list[str]:
        assert path == JOBS
        return list(self.secrets)

    def get_acls_async(self, path: str) -> tuple[list[Any], None] | None:
        name = self._opened(path)
        return None if name is None else (Access(name, self.secrets[name]).acl, None)

    def get_async(self, path: str, watch: None) -> tuple[bytes, None] | None:
        name = self._opened(path)
        return None if name is None else (encode(make_job(name).to_json()), None)

    def _opened(self, path: str) -> str | None:
        name = path.removeprefix(f"{JOBS}/").partition("/")[0]
        secret = self.secrets.get(name)
        return name if secret and Access(name, secret) in self.identities else None


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("EDL_SECRET", "EDL_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state" / "edl"


def error_of(session: Session, name: str) -> UnknownJob:
    return unknown_job(session, JobPaths(name))  # type: ignore[arg-type]


def test_a_job_that_the_session_has_opened_is_named() -> None:
    mine, wrong = Access("digits", MINE), Access("letters", MINE)
    found = error_of(Session(mine, wrong, digits=MINE, letters=THEIRS), "digts")
    assert found.known == ("digits",)
    assert "letters" not in str(found)


def test_a_job_whose_secret_is_kept_is_named(state: Path) -> None:
    keep(state, "digits", MINE)
    keep(state, "gone", MINE)
    assert error_of(Session(digits=MINE, letters=THEIRS), "x").known == ("digits",)
    assert stored(state, ["letters", "digits"]) == {"digits"}


def test_nothing_is_created_to_name_jobs(state: Path) -> None:
    assert str(error_of(Session(), "x")).endswith("; start one with `edl run`")
    assert not state.exists()


def test_a_process_without_a_home_names_what_it_has_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/dev/null/nowhere")
    session = Session(Access("digits", MINE), digits=MINE, letters=THEIRS)
    assert error_of(session, "x").known == ("digits",)


def test_a_new_job_of_the_name_is_told_whoever_has_it() -> None:
    assert "is over, and a new one of that name" in str(error_of(Session(digits=THEIRS), "digits"))


def test_the_secret_in_the_environment_tells_which_jobs_are_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDL_SECRET", ALSO_MINE)
    session = Session(digits=ALSO_MINE, digit=THEIRS)
    store = choose_job(session, "digts")  # type: ignore[arg-type]
    assert error_of(session, store.name).known == ("digits",)


def test_without_a_name_no_other_users_job_is_named(state: Path) -> None:
    with pytest.raises(UsageError, match="no job whose secret is known here is running") as error:
        choose_job(Session(letters=THEIRS), None)  # type: ignore[arg-type]
    assert "letters" not in str(error.value)
    keep(state, "digits", MINE)
    assert choose_job(Session(letters=THEIRS, digits=MINE), None).name == "digits"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no job is running; start one"):
        choose_job(Session(), None)  # type: ignore[arg-type]


def test_who_names_the_job_of_another_user_learns_that_the_secret_is_missing() -> None:
    with pytest.raises(AccessDenied, match="the secret of job letters is not known here"):
        choose_job(Session(letters=THEIRS, words=THEIRS), "letters")  # type: ignore[arg-type]
