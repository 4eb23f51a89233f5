"""What the page of a job says of an incident: what happened, why, what to do, what followed.

The texts of `scenarios/incidents` tell the events of a job of w0 and w1, each with its second, and
after `=>` all that the page says of them; lines are broken where they are long. More events may
follow, and `from the start` begins another story of the same title. `now size=1 desired=2
slowest=w1 step=300` is the job's status, `prepares w2` a worker that is about to join.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenario_texts import scenarios
from shown_job import CREATED, event, generation, snapshot, switch, training

from edl.dashboard.view.incidents import (
    MAX_INCIDENTS,
    MAX_SHOWN,
    IncidentLog,
    IncidentView,
    incident_views,
    with_incidents,
)
from edl.event_text import LAST_WORDS
from edl.events import (
    CheckpointDetails,
    CheckpointFailedDetails,
    Event,
    EvictedDetails,
    GenerationDetails,
    JobFailedDetails,
    LogFailedDetails,
    LogResumedDetails,
    LossSpikeDetails,
    NoTemplateDetails,
    ResumedDetails,
    SlowWorkerDetails,
    StalledDetails,
    WorkerFailedDetails,
    WorkerFrozenDetails,
    ZookeeperBackDetails,
)
from edl.learning import LossSpike
from edl.records import Stage
from edl.status import JobStatus, job_status

HOSTS = {"w0": "node0", "w1": "node1", "w2": "node0", "w3": "node1"}
FULL = "No space left on device"


def ring_of(at_s: float, kind: str, names: list[str], fields: dict[str, str]) -> Event:
    """Return the event of ``12 ring 2 w0 w2 joined=w2 left=w1 repair``, or of a switch into one."""
    if kind == "switched":
        one = switch(at_s, int(names[0]), float(names[1]), detect_s=float(names[2]))
    else:
        workers = tuple(name for name in names[1:] if name != "repair")
        parts = {key: tuple(fields[key].split(",")) for key in ("joined", "left") if key in fields}
        one = generation(at_s, int(names[0]), workers, repair="repair" in names, **parts)
    return replace(one, step=int(fields["step"])) if "step" in fields else one


def event_of(line: str) -> Event:
    """Return the event of ``10 killed w1 code=1: KeyError``; what is behind the colon is said."""
    words, _, said = line.partition(": ")
    second, kind, *rest = words.split()
    at_s, names = float(second), [one for one in rest if "=" not in one]
    fields = dict(one.split("=") for one in rest if "=" in one)
    if kind in ("ring", "switched"):
        return ring_of(at_s, kind, names, fields)
    worker = names[0] if names else ""
    host, step = HOSTS.get(worker, "node0"), int(fields.get("step", 195))
    match kind:
        case "killed":
            code = int(fields.get("code", -9))
            details: Any = WorkerFailedDetails(worker, host, 0, code, said)
            said = f"{worker} on {host} was killed"
        case "evicted":
            details, said = EvictedDetails(worker), f"{worker} was evicted: {said}"
        case "stalled":
            details = StalledDetails((worker,))
        case "frozen":
            details = WorkerFrozenDetails(worker, host, 0, fields.get("stacks", ""))
        case "slow":
            details = SlowWorkerDetails(worker, 0.257, 0.063, *names[1:])
        case "log-failed":
            path, disk = [*names[1:], "/var/log/x", "/var"][:2]
            details = LogFailedDetails(worker, host, path, "" if disk == "-" else disk)
            said = f"{worker} trains on without its log: {said or FULL}: {path}"
        case "log-resumed":
            details = LogResumedDetails(worker, host, 700)
        case "saved":
            step, details = int(worker), CheckpointDetails(f"/data/ckpt/{worker}", 5, 0.1, 0.1)
        case "not-saved":
            step = int(worker)
            details = CheckpointFailedDetails("/data/ckpt", "/data", "superseded" in names)
            said = f"the checkpoint of step {step} was not written: " + (
                said or f"{FULL}: /data/ckpt/.new-{step}/model"
            )
        case "resumed":  # at the step of its checkpoint, with so many steps to train again
            step, details = int(worker), ResumedDetails(f"/ckpt/{worker}", int(names[1]))
        case "zookeeper-back":  # after so many seconds, with the step at their start
            away_s, *begin = names
            details = ZookeeperBackDetails(float(away_s), *map(int, begin))
        case "no-template":
            details = NoTemplateDetails(worker)
        case "job-failed":
            details = JobFailedDetails()
            said = said.replace(" | ", LAST_WORDS)
        case _:
            assert kind == "loss", line
            values = {
                name: None if value == "no" else float(value) if "." in value else int(value)
                for name, value in fields.items()
            }
            step = int(values.pop("step", 522) or 0)
            details = LossSpikeDetails(step, LossSpike(**{"loss": None, **values}))  # type: ignore[arg-type]
    return event(at_s, details, int(fields.get("in", 1)), step, said)


def status_of(told: dict[str, str]) -> JobStatus:
    now = snapshot(status=training())
    if "prepares" in told:
        newcomer = int(told["prepares"][1:])
        now = snapshot((0, newcomer), training(), stages={newcomer: Stage.PREPARING})
    changes: dict[str, Any] = dict(one.split("=") for one in told.get("now", "").split())
    if "size" in changes:
        changes["world_size"] = int(changes.pop("size"))
    if "desired" in changes:
        changes["desired"] = {"node0": int(changes["desired"])}
    if "step" in changes:
        changes["step"] = int(changes["step"])
    return replace(job_status(now, "zk"), **changes)


def views(events: list[str], told: dict[str, str] | None = None) -> list[IncidentView]:
    log = IncidentLog().with_hosts(HOSTS).with_event(generation(0, 1, ("w0", "w1")))
    for line in events:
        log = log.with_event(event_of(line))
    return incident_views(log, status_of(told or {}), 0.0)


def in_words(found: list[IncidentView]) -> str:
    lines = []
    for one in found:
        until = "" if one.until_s is None else f" at {one.until_s - CREATED:g} s"
        when = f"{one.at_s - CREATED:g} s, step {one.step}, {one.tone}{until}, {one.kind}"
        lines.append(f"{when}: {one.what}")
        lines += [f"why: {one.why}"] if one.why else []
        lines += [f"do: {one.advice}"] if one.advice else []
        lines += [f"since: {one.since}"] if one.since else []
    return "\n".join(lines) or "nothing"


@pytest.mark.parametrize("lines", scenarios("incidents"))
def test_what_the_page_says(lines: list[str]) -> None:
    events: list[str] = []
    told: dict[str, str] = {}
    expected = ""
    for line in [*lines, ""]:
        if line.startswith(("  =>", "     ")):
            expected += f" {line.removeprefix('  =>').strip()}"
            continue
        if expected:
            assert in_words(views(events, told)).split() == expected.split()
            expected = ""
        first, _, rest = line.strip().partition(" ")
        if first == "from":
            events, told = [], {}
        elif first in ("now", "prepares"):
            told[first] = rest
        else:
            events.append(line.strip())


def test_what_is_not_over_stays_on_the_page() -> None:
    later = range(2, 2 + MAX_SHOWN)
    story = [f"{2000 * n} killed w{n % 3}" for n in later]
    story += [f"{2000 * n + 1} ring {n} w3 left=w{n % 3}" for n in later]
    story.sort(key=lambda line: float(line.split()[0]))
    found = views(["10 not-saved 50", *story])
    assert (len(found), found[-1].kind) == (MAX_SHOWN, "checkpoint_failed")


def test_hosts_are_known_from_the_events_alone() -> None:
    """Of a job that has ended no worker is in ZooKeeper, which would say where it ran."""
    start = GenerationDetails(1, ("w0", "w1"), ("w0", "w1"), (), True, hosts={"a": ("w0", "w1")})
    log = IncidentLog().with_event(event(0, start, 1))
    for line in ("9 slow w7 b", "10 evicted w1: it is frozen or cut off: no answer"):
        log = log.with_event(event_of(line))
    found = incident_views(log, status_of({"now": "slowest=w7"}), 0.0)
    assert "worker w1 on host a" in found[0].what.lower()
    assert "worker w7 on host b" in found[1].what


def test_a_week_of_incidents_stays_small() -> None:
    log = IncidentLog()
    for number in range(500):
        details = WorkerFailedDetails(f"w{number}", f"h{number}", 0, -9, "")
        log = log.with_event(event(1000.0 * number, details))
    assert len(log.incidents) == MAX_INCIDENTS
    assert len(log.hosts) <= 400
    found = incident_views(log, status_of({}), 0.0)
    assert len(found) == MAX_SHOWN
    assert found[0].what.startswith("Worker w499 ")


GOOD, AMBER = ("training", "good"), ("training; see what happened", "warning")
LOST = ["10 killed w1", "10.1 ring 2 w0 left=w1 repair", "10.3 switched 2 0.14 0.44"]


@pytest.mark.parametrize(
    ("events", "now", "joining", "header"),
    [
        ([], "", 0, GOOD),
        (["10 slow w1"], "slowest=w1", 0, AMBER),
        (["10 slow w1"], "", 0, GOOD),
        (["11 not-saved 50"], "", 0, AMBER),
        (["11 log-failed w0"], "", 0, AMBER),
        (["11 not-saved 50", "99 saved 60"], "", 0, GOOD),
        (LOST, "size=1 desired=2", 0, AMBER),
        (LOST, "size=1 desired=2", 1, GOOD),  # somebody prepares to take the place
        (
            ["10 no-template node0: host node0 starts each anew"],
            "",
            0,
            GOOD,
        ),  # nobody tells its end
    ],
)
def test_the_header_is_not_plainly_green_while_somebody_needs_to_act(
    events: list[str], now: str, joining: int, header: tuple[str, str]
) -> None:
    found = views(events, {"now": now})
    assert with_incidents("training", "good", found, joining) == header


def test_the_header_says_that_the_loss_is_wrong_unless_the_job_does_not_train() -> None:
    wrong = views(["10 loss loss=no"])
    assert with_incidents("training", "good", wrong, 0)[1] == "bad"
    assert with_incidents("stopped", "over", wrong, 0) == ("stopped", "over")
    assert with_incidents("stopping", "warning", views(["1 not-saved 5"]), 0)[0] == "stopping"
