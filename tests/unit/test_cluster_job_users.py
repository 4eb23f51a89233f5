"""As which user of the machine a job runs, and what that user gets."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from edl.cluster.host.logs import LogPlaces
from edl.cluster.host.users import JobUser, JobUsers, job_users
from edl.errors import UsageError

ANN = JobUser("alice", 1001, 1001, (1001, 44), Path("/home/alice"))
REST = JobUser("edl", 1002, 1002, (1002,), Path("/srv/edl"))


def test_each_tenant_has_its_user_and_others_have_one() -> None:
    users = JobUsers({"ann": ANN, "": REST})
    assert users.require("ann.digits") is ANN
    for job in ("digits", "bob.digits", "annex.digits"):
        assert users.require(job) is REST


def test_a_job_without_a_user_does_not_run_as_root() -> None:
    users = JobUsers({"ann": ANN})
    with pytest.raises(PermissionError, match=r"has been given no user for job bob.digits; "):
        users.require("bob.digits")
    assert JobUsers().require("bob.digits") is None, "without --user all run as this process"


def test_a_user_gets_nothing_of_roots_environment_that_is_not_needed() -> None:
    own = {
        "PATH": "/bin",
        "HOME": "/home/host",
        "AWS_SECRET": "x",
        "XDG_STATE_HOME": "/home/host/x",
    }
    assert ANN.environment(own) == {
        "PATH": "/bin",
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
    }


def test_logs_are_where_the_user_writes_them(tmp_path: Path) -> None:
    places = LogPlaces(tmp_path / "jobs", tmp_path / "agents", JobUsers({"ann": ANN}))
    assert places.of_workers("ann.digits") == Path(
        "/home/alice/.local/state/edl/jobs/ann.digits/logs"
    )
    assert places.of_workers("digits") == tmp_path / "jobs/digits/logs"
    assert (places.owner("ann.digits"), places.owner("digits")) == (1001, os.geteuid())


def test_users_are_read_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = job_users(["ann=nobody", "daemon"])
    assert {tenant: user.name for tenant, user in found.of_tenants.items()} == {
        "ann": "nobody",
        "": "daemon",
    }
    assert found.of_tenants["ann"].uid == pwd.getpwnam("nobody").pw_uid
    assert not job_users([]).of_tenants


def test_a_user_has_the_groups_that_only_a_directory_service_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SSSD answers who is in which group, and lists no groups."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    first = pwd.getpwnam("nobody").pw_gid
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group, 700_001])
    assert job_users(["ann=nobody"]).of_tenants["ann"].groups == (first, 700_001)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["ann=nobody-here"], "this machine has no user 'nobody-here'"),
        (["ann=root"], "--user names root, who can read everything"),
        (["a.b=nobody"], "--user is 'a.b=nobody'; give TENANT=USER, or USER for all other jobs"),
        (["ann=nobody", "ann=daemon"], "--user ann=daemon names its jobs a second time"),
        (["ann=nobody", "bob=nobody"], "user nobody has other jobs; give each its own user"),
    ],
)
def test_users_that_cannot_be(words: list[str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UsageError, match=why):
        job_users(words)


def test_only_root_can_run_jobs_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(UsageError, match="--user needs `edl host` to run as root"):
        job_users(["ann=nobody"])
    with pytest.raises(UsageError, match="--user names root"):
        job_users(["root"])


@pytest.mark.parametrize(("word", "of"), [("{}", ""), ("ann={}", "ann")])
def test_whoever_trusts_tenants_names_the_own_user(
    word: str, of: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid)
    users = job_users([word.format("nobody")])
    assert list(users.of_tenants) == [of]
    assert users.require("ann.digits") is None, "it runs as this process, with its environment"
    places = LogPlaces(tmp_path / "jobs", tmp_path / "agents", users)
    assert places.of_workers("ann.digits") == tmp_path / "jobs/ann.digits/logs"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert job_users(["root"]).require("ann.digits") is None, "in a container, for example"
