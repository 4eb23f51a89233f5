"""An ssh server on each host of a net, and the `ssh` that finds them: for `horovodrun`.

Everything is in one directory: keys, settings, known hosts. The user's own ~/.ssh is not read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from net import Net

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "sshd"
START_S = 20.0
SERVER = """\
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/key.pub
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
"""
CLIENT = """\
IdentityFile none
IdentitiesOnly yes
UserKnownHostsFile {directory}/known_hosts
LogLevel ERROR
ServerAliveInterval 2
ServerAliveCountMax 3
"""
# /run/sshd must exist: in a /run of its own, for the mounts of `ip netns exec` are its own.
RUN = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" -D -e -f "$1"'


@contextmanager
def ssh_between(net: Net, directory: Path, *hosts: str) -> Iterator[Path]:
    """Run sshd on these hosts; yield a directory with `ssh` for the PATH, and the private `key`."""
    directory.mkdir()
    for key in ("host_key", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key], check=True
        )
    (directory / "sshd_config").write_text(SERVER.format(directory=directory))
    (directory / "ssh_config").write_text(CLIENT.format(directory=directory))
    client = directory / "ssh"
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/ssh_config "$@"\n')
    client.chmod(0o755)
    with ExitStack() as stack:
        for host in hosts:
            log = stack.enter_context((directory / f"sshd-{host}.log").open("wb"))
            server = subprocess.Popen(
                [*net.enter(host), "sh", "-c", RUN, SSHD, directory / "sshd_config"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(server.wait, 10)
            stack.callback(server.kill)
        deadline = time.monotonic() + START_S
        for host in hosts:
            while 22 not in {port for _, port in net.listening(host)}:
                text = (directory / f"sshd-{host}.log").read_text()
                assert time.monotonic() < deadline, f"no sshd on host {host}: {text}"
                time.sleep(0.05)
        yield directory
