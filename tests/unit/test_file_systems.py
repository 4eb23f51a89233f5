"""On which file systems several machines may use a file at the same time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl.cluster.client import access
from edl.cluster.client.access import file_system, is_on_network

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:52 / /home rw,relatime shared:9 - nfs4 files:/home rw,vers=4.2
41 22 0:53 / /media/a\\040b rw,nosuid master:2 shared:7 - fuse.sshfs ann@files: rw
42 22 0:5 / /dev rw - devtmpfs udev rw
"""


def test_the_type_is_that_of_the_mount_with_the_device() -> None:
    found = {device: file_system(device, MOUNTS) for device in ("8:1", "0:52", "0:53", "0:99")}
    assert found == {"8:1": "ext4", "0:52": "nfs4", "0:53": "fuse.sshfs", "0:99": ""}
    assert file_system("0:52", "") == file_system("0:52", "no mounts\n") == ""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nfs", True), ("lustre", True), ("fuse.sshfs", True), ("ext4", False), ("overlay", False)],
)
def test_other_machines_use_network_file_systems(
    kind: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 {os.major(device)}:{os.minor(device)} / / rw - {kind} a rw\n")
    monkeypatch.setattr(access, "_MOUNTS", mounts)
    assert is_on_network(tmp_path) is expected


def test_without_a_list_of_mounts_a_file_system_counts_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_MOUNTS", tmp_path / "none")
    assert not is_on_network(tmp_path)
