"""`edl stop` while ZooKeeper is away ends the `edl run` of the job on this host."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.cli.main import invoke
from edl.host.agent import written_down


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EDL_ZOOKEEPER", "EDL_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    server = tmp_path / "edl" / "zookeeper"
    (server / "data").mkdir(parents=True)
    (server / "zoo.cfg").write_text("clientPort=20123\nclientPortAddress=127.0.0.1\n")
    return tmp_path / "edl"


@pytest.fixture
def agent(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    logs = state / "jobs" / "digits" / "logs"
    logs.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with written_down(logs, process.pid):
                yield process
        finally:
            process.kill()


def test_a_local_server_that_has_ended_is_away(agent: subprocess.Popen[bytes]) -> None:
    assert invoke(["stop", "digits"]) == 0
    assert agent.wait(5) in (0, -signal.SIGTERM)  # 0: psutil has waited for it


def test_without_such_a_process_the_trouble_is_named(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["stop", "digits"]) == 1
    said = capsys.readouterr().err
    assert "no ZooKeeper answers at 127.0.0.1:20123" in said
    assert "`edl zookeeper start` starts it again with its data" in said
