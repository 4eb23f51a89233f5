"""A real systemd in namespaces of its own, which starts nothing but what it is asked to.

It has its own processes, mounts and cgroups; its network and files are those of the machine. When
its first process is killed, all that it has started dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
START_S = 60.0
END_S = 30.0

# In new namespaces: no unit of the machine may be started, so all are hidden.
_BOOT = """
mount --make-rprivate /
for place in /run /etc/systemd /usr/lib/systemd/system; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/systemd/system /etc/systemd/system
for target in default basic sysinit shutdown umount final; do
    printf '[Unit]\\nDefaultDependencies=no\\n' > /usr/lib/systemd/system/$target.target
done
while umount -R /sys/fs/cgroup 2> /dev/null; do :; done
export container=other
exec /usr/lib/systemd/systemd --system --show-status=no --log-target=console
"""


class Systemd:
    """A systemd that runs; ``enter``: the words before a command that let it run there."""

    def __init__(self, pid: int, log: Path) -> None:
        self.enter = ("nsenter", "-t", str(pid), "-p", "-m", "-C", "--")
        self._log = log

    def systemctl(self, *words: str) -> str:
        """Run systemctl there; return what it prints, whether it fails or not."""
        done = subprocess.run(
            [*self.enter, "systemctl", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=END_S,
            check=False,
        )
        return done.stdout.strip()

    def properties(self, unit: str, *names: str) -> dict[str, str]:
        """Return properties of a unit, by name."""
        shown = self.systemctl("show", unit, *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in shown.splitlines())

    def slices(self) -> list[str]:
        """Return the slices of runs: not those of hosts, which have one dash."""
        shown = self.systemctl("list-units", "--type=slice", "--plain", "--no-legend", "edl-*")
        return [line.split()[0] for line in shown.splitlines() if line.count("-") == 2]

    def __str__(self) -> str:
        return self._log.read_text(errors="replace")


@contextmanager
def booted(directory: Path) -> Iterator[Systemd]:
    """While entered, let a systemd run in namespaces of its own; it needs root."""
    log = directory / "systemd.log"
    groups = _own_cgroups(f"edl-test-{os.getpid()}")
    unshare = ("--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "--mount-proc")

    def enter_cgroups() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    with log.open("wb") as output:
        process = subprocess.Popen(
            ["unshare", *unshare, "--kill-child", "sh", "-ec", _BOOT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=enter_cgroups,
        )
    try:
        systemd = Systemd(_first_child(process), log)
        deadline_s = time.monotonic() + START_S
        while (state := systemd.systemctl("is-system-running")) != "running":
            assert time.monotonic() < deadline_s, f"systemd is {state}: {systemd}"
            time.sleep(0.05)
        yield systemd
    finally:
        process.kill()
        process.wait(END_S)
        for group in groups:
            _remove(group)


def _own_cgroups(name: str) -> list[Path]:
    """Make a cgroup below that of this process in each hierarchy that systemd may use here."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory", "pids", "name=systemd"):
            continue
        for place in (controllers.removeprefix("name=") or "unified", ""):
            parent = CGROUPS / place / own.lstrip("/")
            if (parent / "cgroup.procs").exists():
                (parent / name).mkdir()
                found.append(parent / name)
                break
    return found


def _first_child(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the only child of ``process``, which is systemd's."""
    deadline_s = time.monotonic() + START_S
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (found := children.read_text().split()):
        assert time.monotonic() < deadline_s, "unshare starts nothing"
        time.sleep(0.01)
    return int(found[0])


def _remove(group: Path) -> None:
    """Remove a cgroup and all below it, once the processes there have died."""
    deadline_s = time.monotonic() + END_S
    while group.exists() and time.monotonic() < deadline_s:
        for path, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                os.rmdir(path)
        time.sleep(0.05)


if __name__ == "__main__":
    with booted(Path(sys.argv[1])) as one:
        print(one.systemctl("list-units"))
