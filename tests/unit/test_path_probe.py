"""Whether files are there, though a file system does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

from edl.cluster.host.daemon import PathProbe, exists_here


def test_a_look_that_does_not_end_holds_up_no_other() -> None:
    goes_on, looks = threading.Event(), []

    def exists(path: str) -> bool:
        looks.append(path)
        if path == "/dead":
            assert goes_on.wait(30.0)
        return path != "/no"

    probe = PathProbe(exists)
    assert probe.answers(["/dead"], wait_s=0.0) == {}
    assert probe.answers(["/a", "/no"], wait_s=30.0) == {"/a": True, "/no": False}
    assert probe.answers(["/dead"], wait_s=0.0) == {}
    goes_on.set()
    assert probe.answers(["/dead"], wait_s=30.0) == {"/dead": True}
    assert looks.count("/dead") == 1


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name, there in {"": True, "file": True, "file/": False, "no": False, "link": False}.items():
        assert exists_here(f"{tmp_path}/{name}") is there
    assert exists_here(f"{tmp_path}/{'x' * 5000}") is False
