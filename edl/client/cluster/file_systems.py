"""Tell whether a directory is on a file system that other machines may use at the same time."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "afs"),
        *("glusterfs", "panfs", "pvfs2", "ocfs2", "gfs2", "9p", "virtiofs"),
    )
)
_USER_SPACE = "fuse"  # sshfs, GlusterFS, GPFS gateways and many more


def is_on_network(directory: Path) -> bool:
    """Return whether other machines may use the file system of `directory` at the same time."""
    device = directory.stat().st_dev
    try:
        mounts = _MOUNTS.read_text(errors="replace")
    except OSError:
        return False
    kind = file_system(f"{os.major(device)}:{os.minor(device)}", mounts)
    return kind in _NETWORK or kind.startswith(_USER_SPACE)


def file_system(device: str, mounts: str) -> str:
    for line in mounts.splitlines():
        mount, _, about = line.partition(" - ")
        if mount.split(" ")[2:3] == [device]:
            return about.partition(" ")[0]
    return ""
