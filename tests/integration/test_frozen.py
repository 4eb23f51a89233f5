"""A worker that stands still: frozen with SIGSTOP, or stuck in the user's own code."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from horovodrun import HorovodrunScenario
from paths import SCRIPTS
from scenario import SESSION_S, Scenario, alive, freeze, longest_stall, scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENT = {"EDL_SUSPENDED_S": "0"}  # agents do not end suspended workers
LINE = 1 + next(
    number
    for number, line in enumerate((SCRIPTS / "tally.py").read_text().splitlines(), 1)
    if "while args.stuck.exists()" in line
)  # where a stuck worker sleeps


def given_up(job: Scenario) -> dict[str, str]:
    """Wait until somebody is given up: name -> reason."""
    given: dict[str, str] = job.wait(lambda now: now["evicted"], "an eviction")["evicted"]
    return given


@pytest.mark.parametrize("role", ["plain", pytest.param("leader", marks=pytest.mark.chaos)])
def test_a_frozen_worker_is_given_up_and_does_no_harm_when_it_wakes(
    role: str, tmp_path: Path, zk_hosts: str
) -> None:
    with scenario(tmp_path, zk_hosts, np=3) as job:
        job.wait_for_step(5)
        name = job.leader() if role == "leader" else job.plain()
        rank = job.members(name)[name]["rank"]
        victim, agent = job.process(name), job.agent()
        freeze(agent)  # or it would kill a worker that was evicted and does not end
        freeze(victim)
        reasons = given_up(job)
        assert list(reasons) == [name]
        assert re.fullmatch(
            rf"it is frozen or cut off: {name} \(rank {rank}, host \S+\) left ZooKeeper, "
            r"127.0.0.1:\d+ does not answer and no step completes for \S+ s; "
            r"in step \d+ w\d is waiting for the (step records|gradients) of the others",
            reasons[name],
        ), reasons
        job.wait(lambda now: now["world_size"] == 2, "a ring of 2")
        job.wait_for_progress()
        victim.send_signal(signal.SIGCONT)
        job.until(lambda: not alive(victim), "the woken worker's end")
        agent.send_signal(signal.SIGCONT)
        job.wait_for_size(3)
        assert f"[{name}] edl: worker {name} was evicted by the leader" in job.output()
        (event,) = job.events("evicted")
        assert event["reason"] == f"{name} was evicted: {reasons[name]}"
        reports = job.prove(workers=3)
    # The others stood still until the session was over, and about 1 s more.
    stall_s = longest_stall(reports)
    print(f"frozen {role}: longest pause {stall_s:.2f} s, session {SESSION_S:g} s")
    assert SESSION_S / 2 < stall_s < SESSION_S + 6.0


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (Scenario, "plain"),
        pytest.param(Scenario, "leader", marks=pytest.mark.long),
        pytest.param(HorovodrunScenario, "plain", marks=pytest.mark.long),
    ],
    ids=["edl run", "edl run, the leader", "horovodrun"],
)
def test_a_suspended_worker_is_replaced_long_before_its_session_ends(
    kind: type[Scenario], role: str, tmp_path: Path, zk_hosts: str
) -> None:
    with scenario(tmp_path, zk_hosts, np=2, kind=kind, session_s=60.0) as job:
        job.wait_for_size(2, 180.0)  # horovodrun itself imports TensorFlow
        job.wait_for_step(5)
        name = job.leader() if role == "leader" else job.plain()
        victim = job.process(name)
        freeze(victim)
        job.until(lambda: not alive(victim), "the end of the suspended worker")
        job.wait(lambda now: name not in [one["id"] for one in now["members"]], "a ring without it")
        job.wait_for_size(2, 180.0)
        (event,) = (e for e in job.events("worker_frozen") if e["worker"] == name)
        assert event["reason"] == (
            f"{name} on {event['host']} is killed: it is suspended (SIGSTOP) for 1 s, and others "
            "wait for it"
        )
        reports = job.prove(workers=2)
    stall_s = longest_stall(reports)
    print(f"suspended {role}: longest pause {stall_s:.2f} s")
    assert stall_s < 30.0


@pytest.mark.long  # rule in unit/test_liveness.py
def test_who_is_frozen_for_a_moment_goes_on_and_who_is_stuck_is_named_not_given_up(
    tmp_path: Path, zk_hosts: str
) -> None:
    """A SIGSTOP that is shorter than the session; and the user's own code that stands still."""
    settings = {"session_s": 10.0, "environment": {"EDL_STALL_S": "3", **PATIENT}}
    with scenario(tmp_path, zk_hosts, np=2, **settings) as job:
        before = job.wait_for_step(5)
        victim = job.process(job.plain())
        freeze(victim)
        time.sleep(2.0)
        victim.send_signal(signal.SIGCONT)
        job.wait_for_progress()
        assert job.status()["generation"] == before["generation"]
        assert job.members() == {member["id"]: member for member in before["members"]}

        job.wait(
            lambda now: "stalled" not in now["reason"], "an end of what a busy machine has made"
        )
        name = job.plain()
        earlier = len(job.events("stalled"))
        job.stuck.write_text(job.process(name).environ()["EDL_SLOT"])
        now = job.wait(lambda now: "stalled" in now["reason"], "a stall in the status")
        stuck = job.members(name)[name]
        assert re.fullmatch(
            rf"stalled in step \d+: {name} \(rank {stuck['rank']}, host {stuck['host']}\) has been "
            rf"in its own code, \S*tally.py:{LINE}, for \d+ s; the others wait for it",
            now["reason"],
        ), now["reason"]
        time.sleep(2.0)
        stalls = job.events("stalled")[earlier:]
        assert len(stalls) == 1, job.describe(f"logged more than once: {stalls}")
        assert stalls[0]["workers"] == [name]
        job.stuck.unlink()
        job.wait_for_progress()
        job.wait(lambda now: "stalled" not in now["reason"], "an end of the stall")
        assert job.status()["generation"] == before["generation"]
        reports = job.prove(workers=2)
        assert not job.events("evicted")
    assert {len(report["rings"]) for report in reports} == {1}


@pytest.mark.parametrize(
    "kind",
    [Scenario, HorovodrunScenario],
    ids=["edl run", "horovodrun"],
)
@pytest.mark.long  # `make test` freezes whole processes
def test_a_worker_that_holds_pythons_lock_is_given_up_and_says_where(
    kind: type[Scenario], tmp_path: Path, zk_hosts: str
) -> None:
    """No thread of it runs: its session ends, its port is silent, SIGTERM does nothing."""
    lock = tmp_path / "lock"
    with scenario(tmp_path, zk_hosts, np=2, kind=kind, more=("--lock", str(lock))) as job:
        job.wait_for_size(2, 180.0)  # horovodrun itself imports TensorFlow
        job.wait_for_step(5)
        name = job.plain()
        victim = job.process(name)
        lock.write_text(victim.environ()["EDL_SLOT"])
        reasons = job.wait(lambda now: name in now["evicted"], f"{name} evicted")["evicted"]
        assert reasons[name].startswith(f"it is frozen or cut off: {name} (rank "), reasons
        lock.unlink()
        job.until(lambda: not alive(victim), "end of the frozen worker")
        job.wait_for_size(2, 180.0)
        (event,) = (e for e in job.events("worker_frozen") if e["worker"] == name)
        assert event["reason"].endswith(
            f" does not answer; where its threads are: {event['stacks']}"
        )
        stacks = Path(event["stacks"]).read_text()
        assert f"{name} (process {victim.pid}) does not answer; its threads:" in stacks
        assert re.search(r"thread \d+: comm python; wchan \w", stacks), stacks
        assert re.search(r'File ".*tally.py", line \d+ in hold_the_lock', stacks), stacks
        assert "in _listen\n" in stacks, "the daemon's thread"
        job.prove(workers=2)


@pytest.mark.chaos
def test_a_newcomer_that_leads_does_not_wait_for_a_frozen_worker(
    tmp_path: Path, zk_hosts: str
) -> None:
    """It cannot tell it from one that is cut off; the agent, on the frozen one's host, can."""
    saved = ("--checkpoint", str(tmp_path / "saved"), "--every", "0.5")
    soon = {"EDL_FROZEN_S": "3", **PATIENT}
    with scenario(tmp_path, zk_hosts, np=2, environment=soon, more=saved) as job:
        job.wait_for_step(10)
        leader, plain = job.leader(), job.plain()
        killed, frozen = job.process(leader), job.process(plain)
        freeze(frozen)
        killed.kill()
        began = time.monotonic()
        job.until(lambda: not alive(frozen), "end of the frozen worker", 100.0)
        assert job.leader() not in (leader, plain)
        job.wait_for_size(2, 180.0)
        print(f"a newcomer led, and the job trained again after {time.monotonic() - began:.0f} s")
        assert plain in [event["worker"] for event in job.events("worker_frozen")]
        job.prove(workers=2)


@pytest.mark.chaos
def test_a_stuck_worker_is_given_up_beyond_the_limit(tmp_path: Path, zk_hosts: str) -> None:
    limit = ("--stall-limit", "4")
    soon = {"EDL_STALL_S": "2"}
    with scenario(tmp_path, zk_hosts, np=2, environment=soon, options=limit) as job:
        job.wait_for_step(5)
        job.stuck.write_text(job.process("w0").environ()["EDL_SLOT"])
        reasons = given_up(job)
        assert re.fullmatch(
            rf"w0 \(rank 0, host \S+\) has been in its own code, \S*tally.py:{LINE}, for \d+ s "
            r"in step \d+; the stall limit is 4 s",
            reasons["w0"],
        ), reasons
        job.stuck.unlink()
        job.wait(lambda now: now["world_size"] == 1, "a ring of 1")
        job.wait_for_size(2)
        job.prove(workers=2)
