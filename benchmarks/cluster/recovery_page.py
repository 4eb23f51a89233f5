"""Say what is measured of a cluster's recovery, and write the page with the times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import page

SLOTS = 2  # of each of the two hosts
STEP_S = 0.02
OUTAGE_S = 5.0


@dataclass(frozen=True)
class Part:
    """One measurement: what is killed, and until what the time runs.

    Attributes:
        killed: what is killed, as the table names it.
        until: until what the time is measured.
        goal_s: the goal; None: there is none.
        dlaas: the part of DLaaS that does the same, and its time; empty: it has none.
    """

    killed: str
    until: str
    goal_s: float | None = None
    dlaas: str = ""


API, LCM = "API, 3 to 5 s", "LCM, 4 to 6 s"
GUARDIAN, HELPER = "guardian, 1 to 2 s", "helper, 3 to 4 s"
LEARNER = "learner, 10 to 20 s"
SUBMITTED = "a submission is acknowledged"
PLANNED = "a controller has planned"
RINGED = "its replacement has trained a step in the whole ring"
PARTS: Mapping[str, Part] = {
    "submit": Part("the leading controller", SUBMITTED, 1.0, API),
    "submit_alone": Part("the only controller", SUBMITTED, 1.0, API),
    "submit_leader": Part("the member that leads ZooKeeper, of three", SUBMITTED, 1.0, API),
    "submit_follower": Part("another member of ZooKeeper", SUBMITTED, 1.0, API),
    "plan": Part("the leading controller", PLANNED, 2.0, LCM),
    "plan_alone": Part("the only controller, which is started again", PLANNED, 2.0, LCM),
    "host": Part("`edl host`, which is started again", "it has reported all its jobs", 3.0, HELPER),
    "agent": Part("the agent of a job", "another one has taken its workers over", 2.0, GUARDIAN),
    "worker": Part("a worker", RINGED, 4.0, LEARNER),
    "worker_forked": Part("a worker of a job with a template", RINGED, 1.0, LEARNER),
    "leader": Part("the worker that leads its job", RINGED, 4.0, LEARNER),
    "leader_forked": Part("the same, of a job with a template", RINGED, 1.0, LEARNER),
    "lost_submit": Part(f"all of ZooKeeper, for {OUTAGE_S:g} s", f"{SUBMITTED}*", 2.0),
    "lost_plan": Part("the same", f"{PLANNED}*", 3.0),
    "lost_steps": Part("the same", "longest pause between two steps of the job"),
    "machine_ring": Part("all of a host, with two of a job's four workers", "the others train on"),
    "machine_job": Part("all of a host, with all workers of a job", "it trains on another host"),
    "silent_ring": Part("a host falls silent, with two of four workers", "the others train on"),
    "silent_job": Part("a host falls silent, with all workers of a job", "it trains elsewhere"),
}


TITLE = "How soon a cluster is whole again"
COMMAND = 'make bench ARGS="--only cluster-recovery"'
HOW = f"""
One machine has three ZooKeeper servers, two controllers, and two hosts with {SLOTS} slots each,
which are processes `edl host`. Controllers and hosts are started again at once when they die, as
systemd does. A job trains on PyTorch with steps of {STEP_S * 1000:g} ms, most of which is a wait,
so that two cores are enough. All settings are the usual ones. Each part is killed with `kill -9`
{{times}} times. A time runs from the signal on, but for \\*, and is given in seconds: the median,
and the least and the most.
"""
NOTES = """
**a submission is acknowledged**: a client that was connected before the kill, and one that connects
after it, have both got the answer to `submit`. They try again whenever ZooKeeper does not answer.
A submission is a transaction of ZooKeeper, and needs no controller.

**a controller has planned**: the leader has written its first record of a job that was submitted
after the kill. The only controller has to start anew before that.

**it has reported all its jobs**: the new `edl host` has written a report about the present
assignment, with the same agent and the same workers as before, which train on meanwhile.

**another one has taken its workers over**: another agent is registered with the job, with the same
devices in use. The workers train on meanwhile. The agent had lived for 10 s. Of agents that are
killed sooner, one after another, the second is replaced after 1 s, and the next ones after 2, 4
... 30 s.

**its replacement has trained a step in the whole ring**: the first step that a new worker has
completed in a ring of two. The other worker has trained alone before that.

**the others train on**: all workers of the other host have completed a step in a ring without those
that were killed.

**it trains on another host**: the first step of its next run, which continues from the newest
checkpoint. The cluster waits `lost_after_s`, 10 s, before it does without a host.

A host that **falls silent** has all its processes frozen by SIGSTOP: no connection breaks, as when
its power or its network is gone. First its sessions with ZooKeeper must end, after 6 s.

\\* runs from when all three servers of ZooKeeper serve clients again.

**DLaaS**: the time in which a crashed component has recovered, as its paper on dependability gives
it (Boag et al., arXiv:1805.06801), on Kubernetes and other machines: the API, the lifecycle manager
(LCM), the guardian and the helper of a job, and a learner, which is a training process.
"""


def markdown(found: Mapping[str, Sequence[float]], machine: str) -> str:
    """Return the text of the page; ``found`` has the times in seconds of each part."""
    times = max(len(values) for values in found.values())
    rows = [
        (
            part.killed,
            part.until,
            spread(found[name]),
            f"{part.goal_s:g}" if part.goal_s is not None else "",
            part.dlaas,
        )
        for name, part in PARTS.items()
        if found.get(name)
    ]
    head = ("killed", "until", "s", "goal, s", "DLaaS")
    how = " ".join(HOW.split()).format(times=times)
    notes = [" ".join(note.split()) for note in NOTES.strip().split("\n\n")]
    section = page.Section("Times", how, head, rows, notes)
    return page.markdown(TITLE, COMMAND, f"Machine: {machine}.", [section])


def spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the most, of times in seconds."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
