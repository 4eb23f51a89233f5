"""What the host discovery script understands, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl import config
from edl.errors import UsageError
from edl.host.devices import first_desired, lines, parse_hosts
from edl.host.horovodrun import discovery
from edl.host.horovodrun.driver import ElasticLimits
from edl.spec import Sizes


def test_hosts_and_slots() -> None:
    assert parse_hosts(["a:4", "b:2", "a:1"]) == {"a": 5, "b": 2}
    for word in ("a", "a:", ":3", "a:b", "a:-1", "a:1:2", "a:²"):
        with pytest.raises(UsageError, match="is no host with its slots"):
            parse_hosts([word])


def test_a_name_that_no_host_can_have_is_not_local() -> None:
    assert not discovery.is_local("a..b")
    assert not discovery.is_local("a" * 64)


def test_a_job_starts_with_np_workers_as_few_hosts_as_will_do() -> None:
    assert first_desired({"a": 4, "b": 4}, 2) == {"a": 2}
    assert first_desired({"a": 4, "b": 4}, 6) == {"a": 4, "b": 2}
    assert first_desired({"a": 1, "b": 1}, 3) == {"a": 1, "b": 1}


def test_one_machine_is_named_twice() -> None:
    here = {"localhost": True, "127.0.0.1": True, "gpu1": True, "gpu2": False}
    assert lines({"localhost": 2}, here) == ["localhost:2", "127.0.0.1:0"]
    assert lines({"gpu1": 2, "gpu2": 0}, here) == ["gpu1:2", "localhost:0"]
    assert lines({"gpu1": 2, "gpu2": 1}, here) == ["gpu1:2", "gpu2:1"]
    assert lines({"gpu2": 2}, here) == ["gpu2:2"]


class Stub:
    pid, started = 7, 1.0
    command = ("horovodrun",)
    has_job = False
    asked = 0

    def limits(self) -> ElasticLimits:
        self.asked += 1
        return ElasticLimits(np=2, min_np=1, max_np=4)

    def identity(self) -> dict[str, str] | None:
        found = {"job": "digits", "secret": "s" * 64, "zookeeper": "127.0.0.1:1"}
        return found if self.has_job else None


def test_what_cannot_be_asked_is_answered_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = Stub()
    monkeypatch.setattr(discovery, "find_launcher", lambda: launcher)
    settings = config.load({}, connect_timeout_s=0.3)
    assert discovery.desired_hosts({}, settings, tmp_path) == {"localhost": 2}
    launcher.has_job = True
    assert discovery.desired_hosts({}, settings, tmp_path) == {"localhost": 2}
    (memory,) = (tmp_path / "horovodrun").glob("*.json")
    assert memory.stat().st_mode & 0o077 == 0  # it holds the secret
    text = memory.read_text().replace('{"localhost": 2}', '{"localhost": 3}')
    memory.write_text(text)
    assert discovery.desired_hosts({}, settings, tmp_path) == {"localhost": 3}
    assert launcher.asked == 1  # reading the options of horovodrun is slow


def test_without_horovodrun_what_is_offered_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(discovery, "find_launcher", lambda: None)
    assert discovery.desired_hosts({"a": 2}, config.load({}), tmp_path) == {"a": 2}
    with pytest.raises(UsageError, match="no host is offered"):
        discovery.desired_hosts({}, config.load({}), tmp_path)


def test_settings_of_the_environment_count_more_than_options_of_horovodrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = discovery.DiscoveryState({"localhost": 2}, np=2, min_np=1, max_np=4)
    assert discovery._sizes(memory) == Sizes(1, 4)
    monkeypatch.setenv("EDL_MAX_NP", "3")
    assert discovery._sizes(memory) == Sizes(1, 3)
