"""Six things happen to a real job, and its page tells of each once: what, why, and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import Shell, shell_of, until
from paths import SCRIPTS

from edl.testing.zookeeper import Server, ensemble

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT_S = 120.0
Shown = dict[str, Any]


class SpoiledJob:
    """Job ``j`` with a worker on each of the hosts a and b, and its page.

    Each of the six methods makes one thing happen, waits until the page tells of it, mends it, and
    waits until the job trains as before; the wrong learning rate, which nobody mends, is the last.
    """

    def __init__(self, shell: Shell, server: Server, disk: Path) -> None:
        self.shell, self.server, self.disk = shell, server, disk
        self.knobs = shell.directory / "knobs"
        self.knobs.mkdir()
        shell.environment |= {"XDG_STATE_HOME": str(disk), "EDL_BACKOFF_MAX_S": "1"}

    # --- the job and its page

    def begin(self) -> None:
        """Start both agents and the dashboard; return when two workers train."""
        checkpoints = ("--checkpoint", str(self.disk / "checkpoints"))
        script = (sys.executable, str(SCRIPTS / "knobs.py"), "--knobs", str(self.knobs))
        sizes = ("-np", "1", "--min-np", "1", "--max-np", "2", "--slots", "1")
        words = ("--job", "j", "--host", "a", *script, *checkpoints)
        self.agents = {"a": self.shell.start("run", *sizes, *words)}
        self.shell.until_size(1)
        self.agents["b"] = self.shell.start("join", "--job", "j", "--host", "b", "--slots", "1")
        until(lambda: "b" in self.hosts(), WAIT_S, lambda: "host b does not join")
        assert self.shell.edl("scale", "j", "--np", "2").returncode == 0
        self.shell.until_size(2)
        self.dashboard = self.shell.start("dashboard", "j", "--port", "0")
        self.dashboard.expect("Ctrl-C ends the server", WAIT_S)
        found = re.search(r"(http://\S+/)#token=(\w+)", self.dashboard.output)
        assert found is not None
        self.url, self.token = found[1], found[2]

    def end(self) -> None:
        self.turn("end", 1)
        for one in self.agents.values():
            one.wait(WAIT_S)
        self.dashboard.signal(signal.SIGTERM)
        self.dashboard.wait(WAIT_S)

    def page(self) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}api/page")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return dict(json.load(answer)["sections"])

    def told(self, *kinds: str) -> list[Shown]:
        return [one for one in self.page()["incidents"] if one["kind"] in kinds]

    def until_told(self, kinds: Iterable[str], what: Callable[[Shown], bool]) -> Shown:
        found: list[Shown] = []

        def there() -> bool:
            found[:] = [one for one in self.told(*kinds) if what(one)]
            return bool(found)

        until(there, WAIT_S, lambda: f"the page tells of none: {self.page()['incidents']}")
        assert len(found) == 1, f"one thing is told several times: {found}"
        return found[0]

    def hosts(self) -> dict[str, Any]:
        return dict(self.shell.status()["hosts"])

    def worker_on(self, host: str) -> dict[str, Any]:
        members = self.shell.status()["members"]
        return next(m for m in members if m["host"] == host and m["stage"] == "active")

    def turn(self, knob: str, value: float) -> None:
        new = self.knobs / f".{knob}"
        new.write_text(str(value))
        new.rename(self.knobs / knob)

    def until_trained(self, steps: int = 5) -> None:
        before = self.shell.status()["step"]
        until(lambda: self.shell.status()["step"] >= before + steps, WAIT_S, lambda: "no step")

    # --- what happens to it

    def slow_worker(self) -> Shown:
        """Let the last rank compute five times as long as the other one, for a while."""
        self.turn("slow", 0.2)
        found = self.until_told(["slow_worker"], lambda one: one["tone"] == "warning")
        self.turn("slow", 0)
        self.until_told(["slow_worker"], lambda one: one["tone"] == "over")
        return found

    def zookeeper_outage(self) -> tuple[Shown, Shown]:
        """Kill ZooKeeper, and start it again."""
        self.until_trained()
        self.server.kill()
        lasts = self.until_told(["zookeeper_away"], lambda one: "Training goes on" in one["since"])
        self.server.start()
        over = self.until_told(["zookeeper_back"], lambda one: one["tone"] == "over")
        assert self.told("zookeeper_away") == []
        self.shell.until_size(2)
        return lasts, over

    def full_disk(self) -> tuple[Shown, Shown]:
        self.turn("talk", 500)
        filling = self.disk / "filling"
        with contextlib.suppress(OSError), filling.open("wb") as file:
            while True:
                file.write(bytes(4096))
        kinds = ("log_failed", "checkpoint_failed")

        def all_of_it(one: Shown) -> bool:
            return "was not written" in one["what"] and "write its log" in one["what"]

        lasts = self.until_told(kinds, all_of_it)
        self.turn("talk", 0)
        filling.unlink()
        over = self.until_told(kinds, lambda one: one["tone"] == "over")
        return lasts, over

    def killed_worker(self) -> Shown:
        """Kill the worker that leads; return when another one has taken its place."""
        leader = self.shell.status()["leader"]
        [victim] = [m for m in self.shell.status()["members"] if m["id"] == leader]
        os.kill(victim["pid"], signal.SIGKILL)
        kinds = ["worker_failed"]
        self.until_told(kinds, lambda one: "joined" in one["since"])
        self.shell.until_size(2)
        [found] = self.told(*kinds)
        return found

    def frozen_host(self) -> tuple[Shown, Shown]:
        """Stop all processes of host b, and wake them when the job goes on without them."""
        frozen = self._processes_of("b")
        for one in frozen:
            one.suspend()
        kinds = ["evicted", "stalled"]
        lasts = self.until_told(kinds, lambda one: "Nobody has taken its place" in one["since"])
        for one in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
        over = self.until_told(kinds, lambda one: "joined" in one["since"])
        self.shell.until_size(2)
        return lasts, over

    def _processes_of(self, host: str) -> list[psutil.Process]:
        agent = psutil.Process(self.agents[host].process.pid)
        worker = psutil.Process(self.worker_on(host)["pid"])
        found = [agent, *agent.children(recursive=True), worker]
        return list({one.pid: one for one in found}.values())

    def wrong_learning_rate(self) -> Shown:
        """Let the learning rate rise to six hundred times what it was."""
        self.until_trained(20)
        self.turn("lr", 30)
        return self.until_told(["loss_spike"], lambda one: "not finite" in str(one))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "edl-test", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


@pytest.fixture
def job(tmp_path: Path, disk: Path) -> Iterator[SpoiledJob]:
    servers = tmp_path / "servers"
    servers.mkdir()
    with ensemble(servers, 1) as (server,), shell_of(tmp_path, server.hosts) as shell:
        one = SpoiledJob(shell, server, disk)
        one.begin()
        yield one
        one.end()


def says(shown: Shown, **words: str | tuple[str, ...]) -> None:
    """Fail unless what the page shows has these words, by part: what, why, advice, since."""
    for part, wanted in words.items():
        for one in (wanted,) if isinstance(wanted, str) else wanted:
            assert one in shown[part], (part, one, shown)


@pytest.mark.long  # `unit/test_incidents.py` has the sentences, from events with values
def test_the_page_tells_of_six_incidents_once_each(job: SpoiledJob) -> None:
    slow = job.slow_worker()
    says(slow, what=("All workers waited for worker", "on host b", "times as long as the others"))
    says(slow, why="Something else ran on host b", advice=("`top`", "`edl drain j "))

    away, back = job.zookeeper_outage()
    says(away, what=("ZooKeeper has not answered this page for", "no worker can join or leave"))
    says(away, why=f"No server ran at {job.server.hosts}", advice="`edl zookeeper status`")
    says(away, since=("of 2 workers", "after the last that ZooKeeper knows"))
    says(back, what="ZooKeeper did not answer for", why="No server ran at", advice="the log of")
    says(back, since=("Training went on meanwhile, from step", "ZooKeeper answered again."))
    assert back["until_s"] > back["at_s"]

    full, free = job.full_disk()
    says(
        full,
        what=(f"The disk at {job.disk} on host ", " ran out of space; "),
        why="No space left on device",
    )
    says(full, advice=(f"`df -h {job.disk}`", "Checkpoints and logs then go on by themselves"))
    says(free, since="The checkpoint of step")

    killed = job.killed_worker()
    says(killed, what="was killed by signal 9 (SIGKILL), after step", why="from outside of edl")
    says(killed, advice=("`dmesg -T | grep -i oom`", "`edl logs j "))
    says(killed, since=("went on from step", "joined"))

    frozen, woken = job.frozen_host()
    says(frozen, what=("on host b", "after step"), why="all of host b was stopped")
    says(frozen, advice=("Look whether host b answers: `ping`", "`kill -CONT`"))
    says(woken, since=("The other worker went on from step", "joined"))

    wrong = job.wrong_learning_rate()
    says(wrong, what="The loss ", why="the learning rate, which rose from 0.05 to 30 at about step")
    says(wrong, advice=("`edl stop j`", "`edl checkpoint list`", "the learning rate of before"))
    assert job.page()["header"]["words"] == "training, with a wrong loss"

    shown = job.page()["incidents"]
    story = json.dumps([*shown, *job.shell.events()], indent=1)
    assert Counter(one["kind"] for one in shown) == Counter(
        [
            "slow_worker",
            "zookeeper_back",
            full["kind"],
            "worker_failed",
            woken["kind"],
            "loss_spike",
        ]
    ), story
    assert [one["tone"] for one in shown] == ["bad", *["over"] * 5], story


@pytest.mark.long  # the start and the end of a job, in `test_cli_jobs.py`
def test_nothing_is_told_of_a_job_that_nothing_happens_to(job: SpoiledJob) -> None:
    job.until_trained(20)
    assert job.page()["incidents"] == []
