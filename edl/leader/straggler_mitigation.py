"""Report slow workers, and replace the slowest ones by workers on hosts with a free slot.

Until it is replaced, a slow worker trains smaller batches than the others; it chooses their size
itself (:mod:`edl.worker.ring_watch`). The main entry is :class:`StragglerMitigation`.
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
    """The decisions of one turn about slow workers.

    Attributes:
        says: Which workers are slow and what is done about them, for people; empty if none is slow,
            or in the turn in which a request is taken back.
        findings: New findings, each a pair: the finding (which workers are slow, at what, and how
            slow), and a sentence for people that also says what is done about it.
        decision: A decision to carry out, which requests a replacement or takes the request back;
            None: neither.
        replaced: If a replacement is requested now, the time of the last replacement on each host
            that had one lately, this one included, in seconds of the job's training; else None.
    """

    says: str = ""
    findings: tuple[tuple[StragglerReport, str], ...] = ()
    decision: MembershipDecision | None = None
    replaced: Mapping[str, float] | None = field(default=None)


class StragglerMitigation:
    """The part of a leader that reports slow workers and replaces them by workers in free slots.

    A slot of the slow worker's own host is taken only if no other host has a free one. The object
    only decides; the leader writes the decisions. Only the leader's daemon thread calls it.

    Args:
        wait_s: How long to wait until a replacement joins, in seconds; after that the slow worker
            stays.
        clock: Returns the time in seconds; only differences count.
    """

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
        """Decide which slow worker to replace, and which findings to report.

        At most one worker is replaced at a time: the result requests a new worker in a free slot,
        on another host if possible, and the slow one leaves when that joins. If none joins within
        ``wait_s`` seconds, the result only takes the request back. Findings about workers that are
        no longer members of the ring are ignored.

        Args:
            now: The state of the job in ZooKeeper.
            rule: The rule on slow workers in the job's policy.
            care: The findings of the training thread of the leading worker: which workers are slow,
                and which of them to replace, in the order in which they are tried: the first one
                that can be replaced is.
            replaced: When a worker of each host was last replaced, by host, on the clock of
                ``now_s``.
            now_s: The seconds since training began, in which the job had workers.
        """
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
        """Return the findings to report: new ones, and those whose treatment has changed.

        The treatment of a slow worker is a smaller batch or its replacement. The findings are
        compared with those of the last call, and remembered for the next.

        Args:
            says: All present findings, each a pair with its sentence for people.
            care: Has the share of a batch that each slow worker trains.
            done: What is done to replace a worker, as a clause by worker id.
            members: The ids of the workers in the generation.

        Returns:
            Pairs of a finding and its sentence, the present ones first. Workers of a former finding
            that are in none now, and are still members, get a finding with the speed 1.0.
        """
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
        """Return the decision to replace a slow worker; None if it cannot be replaced.

        It cannot if no host that is considered has a free slot, if it is no member of the ring, if
        its host has more workers than are desired there, so that one leaves it anyway, or if the
        launcher places the workers itself (horovodrun).

        Args:
            now: The state of the job in ZooKeeper.
            worker: The id of the slow worker.
            care: The findings about slow workers; a host of which all workers are slow is not
                considered.
            recent: When a worker of each host was replaced, for hosts where that was less than
                ``again_s`` of the policy ago; these are not considered either.
        """
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
        """Return the first of ``requests`` that waits ``wait_s`` seconds or more; None: none does.

        The time counts from the call in which this leader first saw the request. ``requests`` are
        all requests for replacements that are not answered yet; a request that is not among them is
        forgotten.
        """
        now_s = self._clock()
        self._since = {r.number: self._since.get(r.number, now_s) for r in requests}
        late = (r for r in requests if now_s - self._since[r.number] >= self._wait_s)
        return next(late, None)

    def _taken_back(self, now: Snapshot, late: Request) -> MembershipDecision:
        """Return the decision to take back a request for a replacement; the slow worker stays.

        The decision answers the request, and moves the desired worker back to the slow one's host.

        Args:
            now: The state of the job in ZooKeeper.
            late: The request, open for too long.
        """
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
    """Return the clause that says on which host a worker is being replaced, as ``request`` asks."""
    return f"w{request.worker} is replaced on host {request.host}"


def _doing(finding: StragglerReport, care: Mitigation, done: Mapping[int, str]) -> str:
    """Return what is done about the slow workers of ``finding``, as the end of a sentence.

    The text begins with "; ", such as "; trains 0.70 of a batch in each step". It is empty if
    nothing is done and there is nothing to explain.

    Args:
        finding: The finding: which workers are slow, and at what.
        care: Has the share of a batch that each slow worker trains.
        done: What is done to replace a worker, as a clause by worker id.
    """
    parts = []
    if lower := [worker for worker in finding.workers if worker in care.shares]:
        least = min(care.shares[worker] for worker in lower)
        each = "" if len(lower) == 1 else "at least "
        parts.append(f"trains {each}{least:.2f} of a batch in each step")
    parts += [done[worker] for worker in finding.workers if worker in done]
    if finding.workers and not parts:
        parts.append("no other worker would do better" if finding.at is StragglerCause.DATA else "")
    return "".join(f"; {part}" for part in parts if part)
