"""Settings: argument > environment > file > default, and a sentence for what cannot be used."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import make_job

from edl import config
from edl.cli.common import settings_of_agent
from edl.config import Config, load
from edl.errors import ConfigError, UsageError
from edl.host.host_agent import worker_environment
from edl.records import Host


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def test_without_anything_the_defaults_hold() -> None:
    settings = load({})
    assert settings == Config()
    assert settings.job is None
    assert settings.host == socket.gethostname()


def test_an_argument_beats_the_environment_beats_the_file(elsewhere: Path) -> None:
    (elsewhere / "edl.toml").write_text("slot = 1\ngather_timeout_s = 1\njob = 'file'\n")
    environ = {"EDL_SLOT": "2", "EDL_GATHER_TIMEOUT_S": "2.5"}
    settings = load(environ, slot=3)
    assert (settings.slot, settings.job_settings.gather_timeout_s, settings.job) == (3, 2.5, "file")


def test_none_and_empty_count_as_absent() -> None:
    assert load({"EDL_JOB": ""}, job=None).job is None
    assert load({"EDL_JOB": "digits"}, job=None).job == "digits"
    assert load({"EDL_HOST": ""}, host="").host == socket.gethostname()


def test_the_file_of_the_directory_beats_the_users(elsewhere: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config/edl").mkdir(parents=True)
    (home / ".config/edl/edl.toml").write_text("slot = 7")
    assert load({"HOME": str(home)}).slot == 7
    (elsewhere / "edl.toml").write_text("slot = 8")
    assert load({"HOME": str(home)}).slot == 8


def test_the_users_file_follows_xdg(tmp_path: Path) -> None:
    (tmp_path / "xdg/edl").mkdir(parents=True)
    (tmp_path / "xdg/edl/edl.toml").write_text("slot = 9")
    assert load({"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path)}).slot == 9


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"EDL_SLOT": "two"}, "EDL_SLOT is 'two'; it must be an integer"),
        ({"EDL_SLOT": "1.5"}, "must be an integer"),
        ({"EDL_SESSION_TIMEOUT_S": "soon"}, "must be a number"),
        ({"EDL_SESSION_TIMEOUT_S": "0"}, "session_timeout_s is 0; it must be a positive time"),
        ({"EDL_SESSION_TIMEOUT_S": "-1"}, "positive time"),
        ({"EDL_SESSION_TIMEOUT_S": "inf"}, "session_timeout_s is inf; it must be at most 86400"),
        ({"EDL_CONNECT_TIMEOUT_S": "inf"}, "connect_timeout_s is inf; it must be at most 86400"),
        ({"EDL_SUSPENDED_S": "-1"}, "suspended_s is -1; it must be at least 0"),
        ({"EDL_SUSPENDED_S": "nan"}, "suspended_s is nan; it must be at least 0"),
        ({"EDL_STATE_CHECK_STEPS": "-1"}, "it must be at least 0"),
        ({"EDL_KEEP_JOBS": "-1"}, "keep_jobs is -1; it must be at least 0"),
        ({"EDL_SESSION_TIMEOUT_S": "nan"}, "positive time"),
        ({"EDL_ADDRESS": "::1"}, "knows IPv4 only"),
        ({"EDL_CHAOS": "perhaps"}, "EDL_CHAOS is 'perhaps'; it must be 1 or 0"),
    ],
)
def test_a_value_that_cannot_be_used_gets_a_sentence(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(environ)
    assert isinstance(caught.value, UsageError)
    assert caught.value.setting


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slot = ", "is not readable TOML"),
        ("slots = 2", "unknown settings: slots"),
        ("slot = 'two'", "edl.toml: slot is 'two'; it must be an integer"),
    ],
)
def test_a_file_that_cannot_be_used_gets_a_sentence(
    elsewhere: Path, text: str, message: str
) -> None:
    (elsewhere / "edl.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load({})


def test_an_argument_that_does_not_exist_gets_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no setting named process_sets"):
        load({}, process_sets=None)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"min_np": 1.5}, "min_np is 1.5; it must be an integer"),
        ({"sizes": 2}, "sizes is 2; it must be whole numbers"),
        ({"stall_limit_s": [3]}, r"stall_limit_s is \[3\]; it must be a number"),
        ({"chaos": "perhaps"}, "chaos is 'perhaps'; it must be 1 or 0"),
        ({"chaos": 0.5}, "chaos is 0.5; it must be 1 or 0"),
        ({"zookeeper": 2181}, "zookeeper is 2181; it must be text"),
    ],
)
def test_an_argument_of_another_type_gets_a_sentence(
    argument: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load({}, **argument)


def test_an_argument_may_be_a_number_of_numpy_a_list_or_a_path() -> None:
    found = load({}, max_np=np.int64(4), sizes=[1, 2], stall_s=np.float32(2), resume=Path("saved"))
    assert (found.sizes.max_np, found.sizes.sizes) == (4, (1, 2))
    assert (found.job_settings.stall_s, found.job_settings.resume) == (2.0, "saved")
    assert type(found.sizes.max_np) is int


def test_a_file_that_is_not_text_gets_a_sentence(elsewhere: Path) -> None:
    (elsewhere / "edl.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not readable TOML"):
        load({})


MAY_BE_0 = {"suspended_s"}  # never


def test_every_time_names_its_unit_and_is_checked() -> None:
    times = [name for name, (_, hint) in config.SETTINGS.items() if hint in (float, float | None)]
    assert times
    for name in times:
        assert name.endswith("_s")
        with pytest.raises(ConfigError, match=name):
            load({}, **{name: -1.0 if name in MAY_BE_0 else 0.0})


def test_a_choice_that_does_not_exist_gets_a_sentence() -> None:
    assert load({"EDL_ON_DIVERGENCE": "resync"}).job_settings.on_divergence == "resync"
    with pytest.raises(ConfigError, match="on_divergence is 'mend'; it must be end or resync"):
        load({"EDL_ON_DIVERGENCE": "mend"})


def test_names_of_an_older_version_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load({"EDL_ON_DIVERGENCE": "heal"}).job_settings.on_divergence == "resync"
    assert load({"EDL_LENT_FILE": "/run/lent"}).borrowed_file == "/run/lent"
    Path("edl.toml").write_text('lent_file = "/run/of_file"\n')
    assert load({}).borrowed_file == "/run/of_file"
    assert load({}, borrowed_file="/run/given").borrowed_file == "/run/given"


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load({}).slot = 3  # type: ignore[misc]


def test_variables_for_the_library_are_set_and_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_TEST_GONE", "1")
    monkeypatch.delenv("EDL_TEST_SET", raising=False)
    config.set_environment({"EDL_TEST_SET": "2", "EDL_TEST_GONE": None, "EDL_TEST_NEVER": None})
    seen = config.environment()
    assert seen["EDL_TEST_SET"] == "2"
    assert "EDL_TEST_GONE" not in seen
    config.set_environment({"EDL_TEST_SET": None})


def test_user_directories_follow_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.cache_dir() == tmp_path / "cache/edl"
    assert config.state_dir() == tmp_path / ".local/state/edl"
    assert config.cache_dir().is_dir()


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_the_state_directory_is_closed_to_others_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "edl").mkdir()
    (tmp_path / "edl").chmod(mode)
    assert config.state_dir().stat().st_mode & 0o777 == 0o700


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_directory_gets_a_sentence_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config.cache_dir() == tmp_path / "edl"
    with pytest.raises(ConfigError, match=r"no home directory .*; set HOME or XDG_STATE_HOME"):
        config.state_dir()


OF_HOROVODRUN = {
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
    "HOROVOD_HOSTNAME": "node1",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_IFACE": "eth0",
}


def test_the_slot_that_elastic_horovodrun_started_a_process_for() -> None:
    slot = config.horovod_slot(OF_HOROVODRUN)
    assert slot == config.HorovodSlot("10.0.0.1", 4711, "node1", 1, 3, 4, 2, "eth0")
    assert slot.driver == "10.0.0.1:4711"
    assert config.horovod_slot({**OF_HOROVODRUN, "HOROVOD_ELASTIC": "0"}) is None
    assert config.horovod_slot({}) is None
    for missing in ("HOROVOD_HOSTNAME", "HOROVOD_LOCAL_SIZE"):
        with pytest.raises(ConfigError, match=missing):
            config.horovod_slot({**OF_HOROVODRUN, missing: ""})


def test_a_worker_does_not_inherit_what_another_launcher_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in OF_HOROVODRUN.items():
        monkeypatch.setenv(name, value)
    assert not OF_HOROVODRUN.keys() & config.environment_for_worker().keys()
    assert config.horovod_size() == 4


def test_a_worker_asks_for_the_session_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its host's environment says: a leader judges all workers by the job's setting."""
    monkeypatch.setenv("EDL_SESSION_TIMEOUT_S", "20")
    job = make_job(session_timeout_s=4.5)
    environment = worker_environment(job, "127.0.0.1:1", Host("a", 1, "127.0.0.1"), "s" * 32, "")
    assert load(environment).job_settings.session_timeout_s == 4.5


def test_a_title_that_a_script_gives_its_process_does_not_hide_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without SPT_NOENV setproctitle overwrites the memory that /proc/PID/environ shows."""
    monkeypatch.delenv("SPT_NOENV", raising=False)
    here, secret = Host("a", 1, "127.0.0.1"), "s" * 32
    for of_user, expected in ((None, "1"), ("yes", "yes"), ("", "")):
        if of_user is not None:
            monkeypatch.setenv("SPT_NOENV", of_user)
        environment = worker_environment(make_job(), "127.0.0.1:1", here, secret, "")
        assert environment["SPT_NOENV"] == expected


def test_a_worker_belongs_to_the_run_of_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_RUN", "of another job, whose worker starts this one")
    here, secret = Host("a", 1, "127.0.0.1"), "s" * 32
    environment = worker_environment(make_job(), "127.0.0.1:1", here, secret, "", "0123")
    assert load(environment).run == "0123"
    assert load(worker_environment(make_job(), "127.0.0.1:1", here, secret, "")).run == ""


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("EDL_SESSION_TIMEOUT", "EDL_SESSION_TIMEOUT_S"),
        ("EDL_SESION_TIMEOUT_S", "EDL_SESSION_TIMEOUT_S"),
        ("EDL_MAX_RESTART", "EDL_MAX_RESTARTS"),
        ("EDL_ZOOKEPER", "EDL_ZOOKEEPER"),
    ],
)
def test_a_misspelled_variable_is_found(variable: str, near: str) -> None:
    assert config.misspelled({variable: "4", near: "4"}) == {variable: near}


def test_settings_old_names_and_variables_of_scripts_are_not_misspelled() -> None:
    own = {"EDL_EXPERIMENT": "a", "MY_EDL_SLOTS": "b", "EDL_": "c", "EDL_LOG": "INFO"}
    assert config.misspelled(own) == {}
    settings = {f"EDL_{name.upper()}": "x" for name in (*config.SETTINGS, "lent_file")}
    assert config.misspelled(settings) == {}


def test_a_process_that_starts_workers_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDL_MAX_RESTART", "3")
    settings = settings_of_agent(host="a")
    assert settings.host == "a"
    assert settings.job_settings.max_restarts == Config().job_settings.max_restarts
    message = "edl: EDL_MAX_RESTART is no setting of edl; EDL_MAX_RESTARTS is\n"
    assert capsys.readouterr().err == message
