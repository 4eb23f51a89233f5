"""What a shell completes at Tab: commands, options, names of jobs, events."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl import config
from edl.cli.machine import known_values
from edl.cli.main import invoke
from edl.zookeeper.access import CLUSTERS, announce


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    announce(config.state_dir(), "digits", "0" * 64)
    announce(config.state_dir(), "letters", "0" * 64)
    announce(config.state_dir(), "lab", "0" * 64, CLUSTERS)


def completed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setenv("_EDL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    with pytest.raises(SystemExit) as ended:
        invoke([])
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("edl st", ["status", "stop"]),
        ("edl status d", ["digits"]),
        ("edl scale --job ", ["digits", "letters"]),
        ("edl join --job l", ["letters"]),
        ("edl show --cluster ", ["lab"]),
        ("edl events --explain worker_f", ["worker_failed", "worker_frozen"]),
        ("edl events --fo", ["--follow"]),
        ("edl zookeeper sta", ["start", "status"]),
    ],
)
def test_words(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(line, monkeypatch, capsys) == words


def test_without_a_state_directory_there_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    assert known_values("[JOB]") == {}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["completion", shell]) == 0
    assert f"_EDL_COMPLETE=complete_{shell}" in capsys.readouterr().out
