"""The doctor's rows: which findings make a machine unusable, and that each says what to do."""

from pathlib import Path

import pytest

import edl
from edl.install import doctor
from edl.install.doctor import Check, CheckResult
from edl.install.horovod_wheel import GPU_ONLY, patches


def test_only_a_failed_check_makes_the_machine_unusable() -> None:
    limited = [Check("a", CheckResult.OK, ""), Check("b", CheckResult.LIMITED, "", "mend it")]
    assert doctor.usable(limited)
    assert not doctor.usable([*limited, Check("c", CheckResult.FAILED, "", "mend it")])


def test_another_distribution_of_our_import_name_is_named() -> None:
    row = doctor._import_name(frozenset({"edl-horovod", "edl"}))
    assert row.state is CheckResult.FAILED
    assert "also provided by edl" in row.found
    assert "pip uninstall edl," in row.remedy


def test_another_package_in_front_of_ours_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(edl, "__file__", str(tmp_path / "edl" / "__init__.py"))
    assert doctor._import_name(frozenset({"edl-horovod"})).state is CheckResult.FAILED


def test_our_own_import_name_is_fine() -> None:
    assert doctor._import_name(frozenset({"edl-horovod"})).state is CheckResult.OK


def test_one_framework_is_enough() -> None:
    rows = tuple(doctor._frameworks({"torch": "2.13.0", "tensorflow": None}))
    assert doctor.usable(rows)
    none = tuple(doctor._frameworks({"torch": None, "tensorflow": None}))
    assert [row.state for row in none] == [CheckResult.FAILED, CheckResult.FAILED]
    assert all("edl build-horovod" in row.remedy for row in none)


def test_an_unpatched_horovod_is_limited_and_says_what_is_lost() -> None:
    rows = tuple(doctor._patches({}))
    assert doctor.usable(rows)
    assert [row.found for row in rows] == [
        f"missing: {each.lost}" for each in patches() if each.lost
    ]
    assert all(row.state is CheckResult.LIMITED and row.remedy for row in rows)
    names = {each.name for each in patches()}
    (all_present,) = doctor._patches({"edits": names})
    assert all_present.state is CheckResult.OK
    (for_cpus,) = doctor._patches({"edits": names - GPU_ONLY, "gpu": False})
    assert for_cpus.state is CheckResult.OK
    (limited,) = doctor._patches({"edits": names - GPU_ONLY, "gpu": True})
    assert limited.state is CheckResult.LIMITED


def test_a_machine_without_zookeeper_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("EDL_ZOOKEEPER", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    rows = tuple(doctor._zookeeper())
    assert [row.state for row in rows] == [CheckResult.FAILED, CheckResult.FAILED]
    assert "apt-get install openjdk-17-jre-headless" in rows[0].remedy
    assert "apt-get install zookeeper" in rows[1].remedy
