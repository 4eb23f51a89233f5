"""Say what happens while ZooKeeper does not answer: an incident that is not over.

No event can be logged meanwhile. So the server of the page asks workers directly, at the port where
they answer ``/health``, whether steps complete. When ZooKeeper answers again, the event
``zookeeper_back`` tells of the outage, and this incident is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from edl.core.dashboard.incident_causes import Cause
from edl.core.dashboard.shown_incidents import ShownIncident
from edl.core.dashboard.tense import in_tense
from edl.core.duration import duration_in_words
from edl.core.plural import verb, workers
from edl.core.record import Record

NUMBER = -1  # of the incident: those of events begin at 0
KIND = "zookeeper_away"


@dataclass(frozen=True)
class WorkerReports(Record):
    """The answers of workers that were asked for their health directly.

    Attributes:
        asked: the number of workers that were asked.
        answered: the number of those that have answered.
        step: the newest complete step of these; None: none has answered.
    """

    asked: int = 0
    answered: int = 0
    step: int | None = None

    @classmethod
    def of(cls, run: str, reports: Iterable[Mapping[str, Any]]) -> Self:
        """Return the answers of workers of one job.

        Args:
            run: the token of the start of the job; reports of another one are no answers, because
                the port of a worker that is gone may belong to another process.
            reports: for each worker that was asked, the JSON object of its ``/health``; empty: it
                has not answered.
        """
        all_ = list(reports)
        own = [one for one in all_ if one.get("run") == run and isinstance(one.get("step"), int)]
        return cls(len(all_), len(own), max((int(one["step"]) for one in own), default=None))


def outage_incident(
    cause: Cause,
    lasted_s: float,
    now_s: float,
    step: int,
    asked: WorkerReports,
) -> ShownIncident:
    """Return the incident of an outage that lasts.

    Args:
        cause: why it does not answer, and what to do.
        lasted_s: for how long it has not answered, in seconds.
        now_s: the present time, in seconds since 1970.
        step: the newest complete step that ZooKeeper has told of.
        asked: what workers have answered directly.
    """
    lasted = duration_in_words(lasted_s)
    what = (
        f"ZooKeeper has not answered this page for {lasted}: no worker can join or leave. If one "
        "is lost now, the others wait for ZooKeeper, 10 min by default (elastic_timeout_s)."
    )
    return ShownIncident(
        number=NUMBER,
        at_s=now_s - lasted_s,
        kind=KIND,
        tone="bad",
        step=step,
        until_s=None,
        what=what,
        why=in_tense(cause.why, is_over=False),
        advice=cause.advice,
        since=_since(step, asked),
    )


def _since(step: int, asked: WorkerReports) -> str:
    """Return sentences that say whether the workers have trained during ZooKeeper's outage.

    Args:
        step: the last step that ZooKeeper has told of.
        asked: how many workers the page has asked directly, how many have answered, and the newest
            step in their answers.
    """
    if asked.step is None:
        return (
            f"None of {workers(asked.asked)} has answered this machine directly, so the page does "
            "not know whether they train. Workers do not need ZooKeeper for that."
            if asked.asked
            else "There is no ring of workers."
        )
    more = asked.step - step
    said = f"{asked.answered} of {asked.asked} workers {verb(asked.answered, 'says', 'say')}"
    if more <= 0:
        return f"Asked directly, {said} that no step has completed since step {asked.step:,}."
    return (
        f"Training goes on: asked directly, {said} that step {asked.step:,} is complete, "
        f"{more:,} after the last that ZooKeeper knows: the header still shows step {step:,}."
    )
