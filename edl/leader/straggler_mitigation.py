"""Report slow workers, and replace the slowest ones by workers on hosts with a free slot.

Until it is replaced, a slow worker trains smaller batches than the others; it chooses their size
itself (:mod:`edl.worker.loader_steps`). The main entry is :class:`StragglerMitigation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.job.decision import MembershipDecision
from edl.core.job.desired import set_desired
from edl.core.job.replacement import replacement, taken_back
from edl.core.plural import names
from edl.core.policy.stragglers import Mitigation, StragglerCause, StragglerReport, Stragglers
from edl.core.records import Request, RequestedBy, RequestKind
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class MitigationResult:
    """The decisions of one turn about slow workers."""

    says: str = ""  # who is slow and what is done about it, for people
    findings: tuple[tuple[StragglerReport, str], ...] = ()  # new ones, each with a sentence
    decision: MembershipDecision | None = None  # requests a replacement, or takes that back
    # When each host had its last replacement, in seconds of training; None: none is requested now.
    replaced: Mapping[str, float] | None = field(default=None)


class StragglerMitigation:
    """The part of a leader that reports slow workers and replaces them by workers in free slots."""

    def __init__(self, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._said: dict[tuple[tuple[int, ...], StragglerCause], tuple[bool, ...]] = {}
        self._since: dict[int, float] = {}  # when each request was first seen

    def turn(
        self,
        now: Snapshot,
        rule: Stragglers,
        care: Mitigation,
        replaced: Mapping[str, float],
        now_s: float,
    ) -> MitigationResult:
        """Decide which slow worker to replace, one at a time, and which findings to report."""
        open_ = [request for request in now.requests if request.kind == RequestKind.REPLACE]
        if late := self._late(open_):
            return MitigationResult(decision=self._taken_back(now, late))
        members = set(now.generation.worker_ids if now.generation else ())
        care = care._replace(
            findings=tuple(f for f in care.findings if members.issuperset(f.workers))
        )
        recent = {host: at for host, at in replaced.items() if now_s - at < rule.again_s}
        decision = None
        done = {request.worker: _on_its_way(request) for request in open_}
        for worker in care.replace if not open_ else ():
            decision = self._replace(now, worker, care, recent)
            if decision is not None:
                done[worker] = decision.reason
                break
        says = [(finding, f"{finding}{_doing(finding, care, done)}") for finding in care.findings]
        new = self._news(says, care, done, members)
        text = "; ".join(sentence for _, sentence in says)
        if decision is None:
            return MitigationResult(text, new)
        assert now.generation is not None
        worker = decision.asks[0].worker
        host = next(member.host for member in now.generation.members if member.id == worker)
        return MitigationResult(text, new, decision, {**recent, host: now_s})

    def _news(
        self,
        says: Sequence[tuple[StragglerReport, str]],
        care: Mitigation,
        done: Mapping[int, str],
        members: set[int],
    ) -> tuple[tuple[StragglerReport, str], ...]:
        """Return the findings to report: new ones, and those whose treatment has changed."""
        before = self._said
        self._said = {
            (f.workers, f.at): tuple(w in known for known in (care.shares, done) for w in f.workers)
            for f, _ in says
        }
        new = [
            (f, text)
            for f, text in says
            if before.get((f.workers, f.at)) != self._said[f.workers, f.at]
        ]
        known = {worker for workers, _ in self._said for worker in workers}
        for workers, at in before.keys() - self._said.keys():
            if workers and not known & {*workers} and members.issuperset(workers):
                usual = f"{names(workers)} {at} as fast as the others again"
                new.append((StragglerReport(workers, "", at, 1.0), usual))
        return tuple(new)

    def _replace(
        self, now: Snapshot, worker: int, care: Mitigation, recent: Mapping[str, float]
    ) -> MembershipDecision | None:
        """Return the decision to replace a slow worker; None if it cannot be replaced."""
        # Not on a host of which all workers are slow, nor on one that had a replacement lately.
        slow = {finding.host for finding in care.findings if finding.host}
        found = replacement(now, worker, slow | recent.keys())
        if found is None:
            return None
        target, hosts = found
        ask = Request(RequestKind.REPLACE, worker, host=target)
        reason = _on_its_way(ask)
        change = set_desired(
            now.desired, now.assigned, hosts, RequestedBy.POLICY, f"stragglers: {reason}"
        )
        return MembershipDecision(reason, change=change if change else None, asks=(ask,))

    def _late(self, requests: list[Request]) -> Request | None:
        now_s = self._clock()
        self._since = {r.number: self._since.get(r.number, now_s) for r in requests}
        late = (r for r in requests if now_s - self._since[r.number] >= self._wait_s)
        return next(late, None)

    def _taken_back(self, now: Snapshot, late: Request) -> MembershipDecision:
        """Return the decision to take back a request for a replacement; the slow worker stays."""
        outcome = f"no replacement of w{late.worker} came within {self._wait_s:g} s; it stays"
        answer = Request(
            late.kind, late.worker, late.number, done=True, outcome=outcome, host=late.host
        )
        hosts = taken_back(now, late)
        change = set_desired(
            now.desired, now.assigned, hosts, RequestedBy.POLICY, f"stragglers: {outcome}"
        )
        return MembershipDecision(outcome, change=change if change else None, answers=(answer,))


def _on_its_way(request: Request) -> str:
    return f"w{request.worker} is replaced on host {request.host}"


def _doing(finding: StragglerReport, care: Mitigation, done: Mapping[int, str]) -> str:
    """Return what is done, as the end of a sentence: "; trains 0.70 of a batch in each step"."""
    parts = []
    if lower := [worker for worker in finding.workers if worker in care.shares]:
        least = min(care.shares[worker] for worker in lower)
        each = "" if len(lower) == 1 else "at least "
        parts.append(f"trains {each}{least:.2f} of a batch in each step")
    parts += [done[worker] for worker in finding.workers if worker in done]
    if finding.workers and not parts:
        parts.append("no other worker would do better" if finding.at is StragglerCause.DATA else "")
    return "".join(f"; {part}" for part in parts if part)
