"""docs/get-started/first-cluster.md does what stands there, as it is written, on two machines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest
from net import Net
from paths import ROOT

from edl.testing.job import EDL

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]  # tests/README.md, Time

WAIT_S = 240.0
PAGE = ROOT / "docs" / "get-started" / "first-cluster.md"
NAMES = "127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n"
# In place of ssh between the machines: the home of `a` is a directory here.
SCP = '#!/bin/sh\ntest "$1" = -p && exec cp -p "{home}/${{2#a:}}" "$3"\n'


class Machine:
    """A network namespace with a home of its own, on which somebody types what the page says."""

    def __init__(self, net: Net, name: str, directory: Path, checkout: Path, **more: str) -> None:
        self.home = directory / name
        (self.home / "bin").mkdir(parents=True)
        self._cwd = checkout if name == "a" else self.home
        self._enter = net.enter(name)
        path = (str(self.home / "bin"), str(Path(EDL).parent), os.environ["PATH"])
        kept = {name: one for name, one in os.environ.items() if not name.startswith("EDL_")}
        kept.pop("XDG_STATE_HOME", None)
        own = {"HOME": str(self.home), "PATH": ":".join(path), "OMP_NUM_THREADS": "1"}
        self._options: Any = {
            "cwd": self._cwd,
            "env": kept | own | more,
            "stdin": subprocess.DEVNULL,
        }

    def run(self, command: str) -> str:
        """Return the output of a command, which must end with 0."""
        done = forked.by_exec([*self._enter, "sh", "-c", command], WAIT_S, **self._options)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str, says: str) -> Iterator[None]:
        """Run a command until the end of the block, then press Ctrl-C; it must have said that."""
        log = self.home / f"{command.split()[1]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._enter, "sh", "-c", f"exec {command}"],
                **self._options,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            until(lambda: says in log.read_text(), lambda: f"{command}: {log.read_text()}")
            yield
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(WAIT_S) == 0, log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def until(condition: Callable[[], object], say: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, say()
        time.sleep(0.2)


def page_blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def page_commands(page: Path) -> list[list[str]]:
    """Return the commands of each block of a page, without comments."""
    parts = [
        [line.partition("#")[0].strip() for line in one.splitlines()]
        for one in page_blocks(page, "sh")
    ]
    return [[line for line in part if line] for part in parts]


def test_it_has_five_commands() -> None:
    assert sum(map(len, page_commands(PAGE)[:3])) == 5


def test_from_nothing_to_a_cluster_of_two_machines(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("examples", "data"):
        (checkout / name).symlink_to(ROOT / name)
    (manifest,) = page_blocks(PAGE, "yaml")
    (checkout / "job.yaml").write_text(manifest)
    on_a, on_b, (submit,), (status, jobs, drain, undrain, delete) = page_commands(PAGE)
    with ExitStack() as stack:
        net = stack.enter_context(Net("a", "b", etc={"hosts": NAMES}))
        assert (net.address("a"), net.address("b")) == ("10.77.0.1", "10.77.0.2")
        a, b = (Machine(net, name, tmp_path, checkout) for name in "ab")
        scp = b.home / "bin" / "scp"
        scp.write_text(SCP.format(home=a.home))
        scp.chmod(0o755)
        stack.callback(net.kill, "b")
        stack.callback(net.kill, "a")
        a.run(on_a[0])
        with a.running(on_a[1], "host a offers 2 slots"):
            b.run(on_b[0])
            with b.running(on_b[1], "host b offers 2 slots"):
                assert a.run(submit).splitlines()[-1].startswith("digits  running: ")

                def slots() -> dict[str, int]:
                    hosts = json.loads(a.run(f"{status} --json"))["hosts"]
                    return {one["host"]: one["used"] for one in hosts}

                until(lambda: slots() == {"a": 2, "b": 2}, lambda: a.run(status))
                until(lambda: "4/1-4" in a.run(jobs), lambda: a.run(jobs))
                a.run(drain)
                until(lambda: slots() == {"a": 2, "b": 0}, lambda: a.run(status))
                a.run(undrain)
                until(lambda: slots() == {"a": 2, "b": 2}, lambda: a.run(status))
                a.run(delete)
                until(lambda: "deleted" in a.run(jobs), lambda: a.run(jobs))
        a.run("edl zookeeper stop")
