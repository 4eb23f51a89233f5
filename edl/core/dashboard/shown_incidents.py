"""Write the incidents of a job as its page tells them: with the present, the open ones first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from edl.core.dashboard.full_disk import listed
from edl.core.dashboard.incident import LOST, Incident
from edl.core.dashboard.incidents import IncidentLog
from edl.core.dashboard.tense import in_tense
from edl.core.dashboard.worker_table import WorkerRow
from edl.core.plural import counted, verb, workers
from edl.core.record import Record
from edl.core.records import Stage
from edl.core.slow_worker import holds_up
from edl.core.status import JobStatus

SHOWN = 8
_ENDING = frozenset({"slow_worker", "log_failed", "checkpoint_failed"})  # whose end is told, too
SMALLER = 0.95  # of the others' batch: a smaller one is no accident of its rounding


@dataclass(frozen=True)
class ShownIncident(Record):
    """An incident as the page tells it."""

    number: int
    at_s: float  # when it was noticed, in seconds since 1970
    kind: str  # the kind of the event that says most of it
    tone: str  # `bad`, `warning`, or `over` if the job has recovered from it
    step: int  # the newest complete step then
    # when it was over, in seconds since 1970; None: it is not, or that is not known. Of lost
    # workers it is None: what followed says when others went on and came.
    until_s: float | None
    what: str  # what happened, in a sentence
    why: str  # why, as far as is known
    advice: str
    since: str  # what followed; empty: nothing yet


def shown_incidents(
    log: IncidentLog, status: JobStatus, standing_s: float, rows: Sequence[WorkerRow] = ()
) -> list[ShownIncident]:
    """Return the incidents of a job as its page tells them, the newest first."""
    lost = {worker for one in log.incidents if one.kind in LOST for worker in one.workers}
    found = [_shown(one, status, standing_s, lost, rows) for one in log.incidents]
    found.sort(key=lambda one: (one.tone == "over", -one.at_s))
    return sorted(found[:SHOWN], key=lambda one: -one.at_s)


def _shown(
    one: Incident,
    status: JobStatus,
    standing_s: float,
    lost: set[str],
    rows: Sequence[WorkerRow],
) -> ShownIncident:
    """Return `one` with what the present status adds to it; `lost` are the workers lost."""
    followed, is_over = list(one.followed), one.is_over
    runs = not status.state.over
    if one.kind in ("slow_worker", "log_failed") and not is_over:
        disk = one.full_disk
        concerned = () if disk and disk.checkpoints else disk.logs if disk else one.workers
        gone = bool(concerned) and {*concerned} <= lost
        if gone and runs:
            are = verb(len(concerned), "is", "are")
            followed.append(f"{listed(concerned)} {are} not in the job any more.")
        elif one.kind == "slow_worker" and runs and status.slowest not in one.workers:
            said = _no_longer_waited_for(one.workers[0], rows)
            followed += [said] if said else []
            gone = bool(said)
        is_over = gone or (one.kind == "slow_worker" and not runs)
    if one.kind == "stalled" and runs and status.step > one.step and not standing_s:
        followed.append(f"Steps completed again: the job is at step {status.step:,}.")
        is_over = True
    wanted = sum((status.desired or status.assigned).values())
    if one.kind in LOST and is_over and runs and status.world_size < wanted and not one.joined:
        followed.append(_empty_place(status, wanted))
        is_over = False
    if one.times > 1:
        followed.insert(0, f"It has happened {counted(one.times, 'time')} in all.")
    return ShownIncident(
        number=one.number,
        at_s=one.at_s,
        kind=one.kind,
        tone="over" if is_over else "warning" if one.is_over else one.tone,
        step=one.step,
        until_s=one.over_s if is_over and one.kind not in LOST else None,
        what=in_tense(one.what, is_over),
        why=in_tense(one.why, is_over),
        advice=_named(one.advice, status.job),
        since=" ".join(followed),
    )


def _empty_place(status: JobStatus, wanted: int) -> str:
    """Return a sentence that nobody has taken the place of a lost worker, and who prepares to."""
    new = [one for one in status.members if one.stage in (Stage.PREPARING, Stage.READY)]
    who = listed([f"{one.id} on host {one.host}" for one in new])
    prepares = f"; {who} {verb(len(new), 'prepares', 'prepare')} to join" if new else ""
    np = status.world_size
    now = f"{np} of {workers(wanted)} {verb(np, 'trains', 'train')}"
    return f"Nobody has taken its place yet{prepares}: {now}."


def _no_longer_waited_for(worker: str, rows: Sequence[WorkerRow]) -> str:
    """Return that the others do not wait for `worker` any more; empty: by `rows` they do."""
    own = {row.worker: row for row in rows if row.own_s is not None}
    row, others = own.pop(worker, None), list(own.values())
    # The table is measured less often than workers report whom they wait for: both must say so.
    if row is None or not others or row.speed is None or not row.is_slow:
        return "Then no worker waited for it any more."
    own_s, others_s = row.own_s or 0.0, median(one.own_s or 0.0 for one in others)
    if holds_up(own_s, others_s):
        return ""
    less = (row.samples or 0.0) < SMALLER * median(one.samples or 0.0 for one in others)
    batch = "with its smaller batch it " if less else ""
    return (
        f"It is still slow ({row.speed:.2f} of the usual speed), but {batch}takes only "
        f"{own_s / max(others_s, 1e-9):.1f} times as long as the others."
    )


def _named(text: str, job: str) -> str:
    return re.sub(r"\bJOB\b", lambda _: job, text)


def with_incidents(
    words: str, tone: str, incidents: Sequence[ShownIncident], joining: int
) -> tuple[str, str]:
    """Return the words and the tone of a job's header, which say that somebody should act."""
    if tone != "good":
        return words, tone
    lasting = {one.kind for one in incidents if one.tone != "over"}
    if "loss_spike" in lasting:
        return "training, with a wrong loss", "bad"
    urgent = _ENDING if joining else _ENDING | LOST
    return (f"{words}; see what happened", "warning") if lasting & urgent else (words, tone)
