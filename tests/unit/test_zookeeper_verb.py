"""`edl zookeeper`: where it may listen and keep its files; nothing is started here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.cli import machine as zookeeper
from edl.cli.main import invoke
from edl.errors import UsageError
from edl.zookeeper import local_server
from edl.zookeeper.local_server import LocalServer, check_directory, start_local

EVERYWHERE = (
    "commands on other hosts reach it by --zookeeper ADDRESS:2181, with an address of this "
    "machine, here too"
)
STRANGE = "198.51.100.7"  # of a range for documentation


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        yield squatter.getsockname()[1]


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    sentence = rf"{STRANGE} is no address of this machine, which has .*127\.0\.0\.1"
    with pytest.raises(UsageError, match=sentence):
        start_local(tmp_path / "new", address=STRANGE)
    assert not (tmp_path / "new" / "zoo.cfg").exists()


@pytest.mark.parametrize("address", ["here", "::1", "127.0.0.1:2181", "300.1.1.1"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match=f"the address is '{address}'; give an IPv4 address"):
        start_local(tmp_path, address=address)


@pytest.mark.parametrize("address", [None, "127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_has_is_refused(
    tmp_path: Path, taken: int, address: str | None
) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on port {taken} of .*another --port"):
        start_local(tmp_path, address=address, port=taken)


def test_the_address_of_the_last_start_must_be_there_still(tmp_path: Path) -> None:
    (tmp_path / "zoo.cfg").write_text(f"clientPort=2181\nclientPortAddress={STRANGE}\n")
    with pytest.raises(UsageError, match=f"{STRANGE} is no address of this machine"):
        start_local(tmp_path)


def test_the_files_of_others_are_left_alone(tmp_path: Path) -> None:
    check_directory(tmp_path / "new")
    check_directory(tmp_path)
    for name in ("data", "lock", "zookeeper.log", "server.json", "logback.xml"):
        (tmp_path / name).touch()
    check_directory(tmp_path)  # where a start was killed
    own = f"clientPort=1\ndataDir={tmp_path}/data\n"
    for configuration, is_own in ((own, True), ("dataDir=/var/lib/zookeeper\n", False)):
        (tmp_path / "zoo.cfg").write_text(configuration)
        if is_own:
            check_directory(tmp_path)
        else:
            with pytest.raises(UsageError, match="no ZooKeeper of edl has run there"):
                check_directory(tmp_path)
    (tmp_path / "zoo.cfg").write_text(own)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not empty, and no ZooKeeper of edl has run there"):
        check_directory(tmp_path)
    with pytest.raises(UsageError, match=r"cannot keep ZooKeeper in .*: Not a directory"):
        check_directory(tmp_path / "thesis.tex")


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_the_verbs_do_not_touch_the_directory_of_another(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    assert invoke(["zookeeper", verb, "--data", str(tmp_path)]) == 2
    assert "name a new directory" in capsys.readouterr().err
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_nothing_is_created_to_stop_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["zookeeper", "stop", "--data", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "no local ZooKeeper runs\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_that_cannot_be(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["zookeeper", "start", "--port", port]) == 2
    assert "'--port'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "data", "told"),
    [
        ("127.0.0.1", [], []),
        ("127.0.0.1", ["--data", "d"], ["commands reach it by --zookeeper 127.0.0.1:2181"]),
        (
            "10.0.0.5",
            [],
            ["commands on other hosts reach it by --zookeeper 10.0.0.5:2181", zookeeper.WARNING],
        ),
        ("0.0.0.0", [], [EVERYWHERE, zookeeper.WARNING]),
    ],
)
def test_what_to_type_on_other_hosts_is_told(
    address: str,
    data: list[str],
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    server = LocalServer(f"{address}:2181", address, 2181, 1, "3.8.0", tmp_path, tmp_path)
    asked: list[object] = []
    monkeypatch.setattr(local_server, "start_local", lambda *a, **named: asked.append(named))
    monkeypatch.setattr(local_server, "local_status", lambda state: server)
    command = ["zookeeper", "start", "--address", address, "--port", "2181", *data]
    assert invoke(command) == 0
    assert asked == [{"address": address, "port": 2181}]
    assert capsys.readouterr().out.splitlines() == [f"ZooKeeper runs at {address}:2181", *told]
