"""On which disk a file is."""

from __future__ import annotations

from pathlib import Path

from edl.checkpoint.location import mount_point


def test_it_is_the_nearest_directory_at_which_a_disk_is_mounted(tmp_path: Path) -> None:
    assert mount_point("/proc/self/status") == "/proc"
    assert mount_point("/") == "/"
    found = Path(mount_point(tmp_path))
    assert found.is_mount()
    assert found in tmp_path.resolve().parents


def test_a_file_that_is_missing_is_on_the_disk_of_its_nearest_parent(tmp_path: Path) -> None:
    assert mount_point("/proc/no/such/file") == "/proc"
    link = tmp_path / "link"
    link.symlink_to("/proc/nothing")
    assert mount_point(link / "x") == "/proc"
