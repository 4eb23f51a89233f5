"""Say what happens while ZooKeeper does not answer: an incident that is not over.

No event can be logged meanwhile. So the server of the page asks workers directly, at the port where
they answer ``/health``, whether steps complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from edl.dashboard.view.incidents import OF_ZOOKEEPER, Cause, IncidentView, listed
from edl.record import Record
from edl.text import duration_in_words, verb, workers

NUMBER = -1  # of the incident: those of events begin at 0
KIND = "zookeeper_away"


STILL_S = 5.0  # without a new step: training is not said to go on


@dataclass(frozen=True)
class WorkerReports(Record):
    """The answers of workers that were asked for their health directly."""

    asked: int = 0  # the number of workers that were asked
    answered: int = 0  # the number of those that have answered
    step: int | None = None  # the newest complete step of these; None: none has answered
    silent: tuple[int, ...] = ()  # the ids of the workers that have not answered
    grew: bool = False  # a step was completed since they were first asked in this outage
    still_s: float = 0.0  # the seconds since the answers told of a new step

    @classmethod
    def of(cls, run: str, reports: Mapping[int, Mapping[str, Any]]) -> Self:
        steps = {
            worker: int(one["step"])
            for worker, one in reports.items()
            # The port of a worker that is gone may belong to another process.
            if one.get("run") == run and isinstance(one.get("step"), int)
        }
        silent = tuple(worker for worker in reports if worker not in steps)
        return cls(len(reports), len(steps), max(steps.values(), default=None), silent)

    def after(self, before: WorkerReports | None, passed_s: float) -> WorkerReports:
        if before is None or before.step is None or self.step is None:
            return self
        if self.step > before.step:
            return replace(self, grew=True)
        return replace(self, grew=before.grew, still_s=before.still_s + passed_s)


def outage_incident(
    cause: Cause,
    lasted_s: float,
    now_s: float,
    step: int,
    asked: WorkerReports,
) -> IncidentView:
    lasted = duration_in_words(lasted_s)
    what = (
        f"ZooKeeper has not answered this page for {lasted}: no worker can join or leave. If one "
        "is lost now, the others wait for ZooKeeper, 10 min by default (elastic_timeout_s)."
    )
    return IncidentView(
        number=NUMBER,
        at_s=now_s - lasted_s,
        kind=KIND,
        tone="bad",
        step=step,
        until_s=None,
        what=what,
        why=cause.why,
        advice=cause.advice,
        since=_since(step, asked),
    )


def _since(step: int, asked: WorkerReports) -> str:
    if asked.step is None:
        return (
            f"None of {workers(asked.asked)} has answered this machine directly, so the page does "
            "not know whether they train. Workers do not need ZooKeeper for that."
            if asked.asked
            else "There is no ring of workers."
        )
    more = asked.step - step
    said = f"{asked.answered} of {asked.asked} workers {verb(asked.answered, 'says', 'say')}"
    if asked.grew and asked.still_s < STILL_S:
        return (
            f"Training goes on: asked directly, {said} that step {asked.step:,} is complete, "
            f"{more:,} after the last that ZooKeeper knows: the header still shows step {step:,}."
        )
    known = f", {more:,} after the last that ZooKeeper knows" if more > 0 else ""
    text = f"Asked directly, {said} that step {asked.step:,} is the newest complete one{known}"
    if asked.still_s < STILL_S:
        return f"{text}."
    text += f"; no step has completed for {duration_in_words(asked.still_s)}."
    if asked.silent:
        names = " and ".join(f"w{worker}" for worker in asked.silent)
        text += f" {names} {verb(len(asked.silent), 'does', 'do')} not answer"
        text += ": the others wait until ZooKeeper answers, and then go on without the lost."
    return text


# --- Say why ZooKeeper does not answer, by what its servers do with a new connection.


class ServerProbe(StrEnum):
    """The ways in which a server may treat a new TCP connection: refuse, ignore or take it."""

    REFUSED = "refused"  # its machine answers that no process listens at the port
    SILENT = "silent"  # no answer comes, or there is no route to the machine
    OPEN = "open"  # the machine takes the connection, as it does for a process that is stopped, too


def outage_cause(trouble: str, probes: Mapping[str, ServerProbe]) -> Cause:
    why, _, advice = trouble.partition(": ")
    if advice:
        why = why.replace("Its ", "The server's ", 1).replace(" its ", " the server's ", 1)
        # It is told when it is over, too.
        why = why.replace(" is ", " was ", 1).replace(" has ended", " had ended", 1)
        return Cause(f"{why}.", f"{advice[:1].upper()}{advice[1:]}")
    servers: dict[ServerProbe, list[str]] = {}
    for server, probe in probes.items():
        servers.setdefault(probe, []).append(server)
    known = [(probe, listed(servers[probe])) for probe in ServerProbe if probe in servers]
    why = " ".join(_WHY[probe].format(names) for probe, names in known)
    advice = " ".join(_ADVICE[probe].format(names) for probe, names in known)
    return Cause(why or OF_ZOOKEEPER.why, f"{advice or _UNKNOWN} {_GOES_ON}")


_UNKNOWN = "Let it run again: start the server, give it disk space, or mend the network."
_GOES_ON = (
    "On the host where edl has started it, `edl zookeeper start` starts it again with its data, "
    "and `edl zookeeper status` names its log. The job goes on by itself when ZooKeeper answers."
)
# What was seen stays true when the outage is over.
_WHY = {
    ServerProbe.REFUSED: "No server ran at {0}: the machine refused connections, so the process "
    "had ended.",
    ServerProbe.SILENT: "Nothing answered at {0}: the machine was down or frozen, or the network "
    "to it was cut.",
    ServerProbe.OPEN: "A server at {0} took connections, but did not answer: it was stopped or "
    "overloaded, its disk was full, or it did not reach most of the other servers.",
}
_ADVICE = {
    ServerProbe.REFUSED: "Start the server at {0} again, and read in its log why it has ended.",
    ServerProbe.SILENT: "Of {0}: `ping` its host; start it again or mend the network to it.",
    ServerProbe.OPEN: "Of {0}: look whether its process is stopped, how busy its host is, whether "
    "its disk is full (`df -h`), and whether it reaches the other servers.",
}
