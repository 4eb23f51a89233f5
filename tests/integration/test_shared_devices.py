"""Two jobs share the devices of a host, and one device changes from one job to the other."""

from __future__ import annotations

import sys

import psutil
import pytest
from cli_shell import STANDIN, WAIT_S, Shell, shell, until

from edl.client import Job, submit
from edl.errors import UsageError
from edl.records import Host

pytestmark = pytest.mark.integration
__all__ = ["shell"]


def here(shell: Shell, job: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    with shell.store(job) as store:
        host: Host
        [host] = store.snapshot().hosts
        return host.devices, host.busy


def seen(shell: Shell, job: str) -> dict[int, tuple[str, str]]:
    with shell.store(job) as store:
        members = store.snapshot().members
    variables = {m.slot: psutil.Process(m.pid).environ() for m in members}
    return {
        slot: (found["EDL_DEVICE"], found["CUDA_VISIBLE_DEVICES"])
        for slot, found in variables.items()
    }


def test_a_device_changes_from_one_job_to_another_in_two_writes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EDL_ZOOKEEPER", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, shell.environment[name])
    shell.environment["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"
    command, more = (
        (sys.executable, STANDIN, "--until", "go"),
        {"cwd": shell.directory, "max_np": 2},
    )
    started = (("one", {"h": 2}, (0, 1)), ("two", {"h": 1}, (2,)))
    agents = []
    for name, np, devices in started:
        with submit(command, np, devices={"h": devices}, name=name, **more):
            agents.append(shell.start("join", "--job", name, "--host", "h", "--slots", "3"))
            shell.until_size(np["h"], name)
    one, two = Job("one"), Job("two")
    assert seen(shell, "one") == {0: ("0", "4"), 1: ("1", "4,5")}
    assert seen(shell, "two") == {0: ("2", "6")}
    until(lambda: here(shell, "one") == ((0, 1), (0, 1)), WAIT_S)
    with pytest.raises(UsageError, match=r"2 workers on host h, where the job has 1 device \(0\)"):
        one.place({"h": 2}, {"h": [0]})

    one.place({"h": 1}, {"h": [0]}, timeout_s=WAIT_S)  # the worker on device 1 leaves
    until(lambda: here(shell, "one") == ((0,), (0,)), WAIT_S)
    assert seen(shell, "one") == {0: ("0", "4")}
    done = two.place({"h": 2}, {"h": [1, 2]}, timeout_s=WAIT_S)
    assert (done.before, done.after) == ({"h": 1}, {"h": 2})
    assert seen(shell, "two") == {0: ("2", "6"), 1: ("1", "6,5")}
    until(lambda: here(shell, "two") == ((1, 2), (1, 2)), WAIT_S)

    one.place({"h": 1}, {"h": [3]}, timeout_s=WAIT_S)  # another worker takes the place
    until(lambda: here(shell, "one") == ((3,), (3,)), WAIT_S)
    assert seen(shell, "one") == {0: ("3", "7")}
    (shell.directory / "go").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
