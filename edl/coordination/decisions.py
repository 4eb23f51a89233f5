"""Elect the leader of a job, and write what it decides about the job.

:func:`job_election` gives the election, and a :class:`DecisionWriter` writes during one term. Each
write is fenced by the leader's term: it is refused when the term is over (see ``election``). A
membership decision is written as a whole: the generation, the desired and assigned numbers of
workers, evictions, answers to requests and events are one transaction. It is refused if somebody
else has changed the generation, or a record that it would overwrite, since the leader read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from kazoo.protocol.states import ZnodeStat

from edl.coordination.election import Election, Leadership, Write
from edl.coordination.nodes import JobNodes
from edl.coordination.paths import candidate_name
from edl.coordination.reads import exists, get
from edl.coordination.session import Refused
from edl.coordination.wire import decode
from edl.core.events import Event
from edl.core.job.decision import MembershipDecision
from edl.core.job.desired import DesiredChange
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.progress import TrainingStatus
from edl.core.records import Assigned, Desired, Generation, JobPolicy, Request
from edl.errors import CoordinationError

ATTEMPTS = 10  # each is lost only to another writer of the same nodes

Answer = tuple[bytes, ZnodeStat]  # data and stat of a node that exists


def job_election(nodes: JobNodes, worker: int) -> Election:
    """Return the election of a job's leader, in which a worker of the job is the candidate."""
    return Election(
        nodes.session,
        nodes.paths.election,
        candidate_name(worker),
        leader_path=nodes.paths.leader,
        record={"worker": worker},
        missing=nodes.unknown,
        fence=nodes.fence,
    )


class DecisionWriter:
    """The writer of the decisions of a job's leader during one term."""

    def __init__(self, nodes: JobNodes, leadership: Leadership) -> None:
        self._nodes = nodes
        self._leadership = leadership

    @property
    def term(self) -> int:
        """The number of the leader's term."""
        return self._leadership.term

    def carry_out(self, decision: MembershipDecision, events: Sequence[Event] = ()) -> None:
        """Write a membership decision and its events in one transaction."""
        for _ in range(ATTEMPTS):
            writes = self._writes(decision)
            if not writes:
                return
            try:
                self._leadership.try_commit([*writes, *map(self._logged, events)])
            except Refused:
                continue  # what we have just read has changed
            return
        raise CoordinationError(
            f"a decision of term {self.term} could not be written: what it changes was changed "
            f"by others {ATTEMPTS} times"
        )

    def put_event(self, event: Event) -> None:
        """Append to the event log what the leader of this term has found."""
        self._leadership.commit([self._logged(event)])

    def put_status(self, status: TrainingStatus) -> None:
        """Replace the summary of the training for people and tools, in the status node."""
        self._leadership.commit([Write(self._nodes.paths.status, status.to_json())])

    def put_policy(self, before: JobPolicy, policy: JobPolicy, event: Event) -> None:
        """Replace the policy `before` of the job by `policy`, and log `event`, at once."""
        path = self._nodes.paths.policy
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            raise self._nodes.unknown()
        if JobPolicy.from_json(decode(path, answer[0])) != before:
            raise CoordinationError("the job has another policy meanwhile; decide again")
        write = Write(path, policy.to_json(), answer[1].version)
        self._leadership.commit([write, self._logged(event)])

    def put_learned(self, learned: ScalingProfile) -> None:
        """Replace the stored throughputs that the job has measured; a later leader reads them."""
        self._leadership.commit([Write(self._nodes.paths.learned, learned.to_json())])

    def _logged(self, event: Event) -> Write:
        return Write(f"{self._nodes.paths.events}/e-", event.to_json(), sequence=True)

    def _writes(self, decision: MembershipDecision) -> list[Write]:
        """Read the nodes that `decision` changes, and return the writes that change them."""
        paths = self._nodes.paths
        registered = [paths.member(worker) for worker in sorted(decision.registered)]
        evicted = {worker: paths.evicted_worker(worker) for worker in decision.evict}
        answered = [paths.request(request.number) for request in decision.answers]
        sizes = (paths.generation, paths.desired, paths.assigned)
        reads = [*map(get, sizes), *map(exists, [*evicted.values(), *answered, *registered])]
        found = self._nodes.session.read_all("read what a decision changes", reads)
        generation, desired, assigned, *stats = found
        if None in (generation, desired, assigned):
            raise self._nodes.unknown()
        present = iter([stat is not None for stat in stats])
        writes = [
            *self._generation(decision.generation, generation),
            *self._sizes(decision.change, desired, assigned),
            *self._evictions(decision.evict, [*islice(present, len(evicted))]),
            *self._answers(decision.answers, [*islice(present, len(answered))]),
            *self._requests(decision.asks),
        ]
        if writes and not all(present):
            raise CoordinationError("a worker has left as agreed meanwhile; decide again")
        return [*(Write(path, {}, check=True) for path in registered if writes), *writes]

    def _generation(self, new: Generation | None, read: Answer) -> list[Write]:
        """Return the write of a new generation, as a list of one, or an empty list."""
        if new is None:
            return []
        path, (data, stat) = self._nodes.paths.generation, read
        current = decode(path, data)
        number = Generation.from_json(current).number if current else 0
        if new.number != number + 1 or new.term != self.term:
            raise CoordinationError(
                f"generation {new.number} of term {new.term} cannot follow generation {number} "
                f"in term {self.term}; decide again on a fresh snapshot"
            )
        return [Write(path, new.to_json(), stat.version)]

    def _sizes(
        self, change: DesiredChange | None, desired: Answer, assigned: Answer
    ) -> list[Write]:
        """Return the writes of a change of the desired numbers of workers by host."""
        if not change:
            return []
        paths = self._nodes.paths
        # Others may have changed only the devices or the batch, with the numbers as they were.
        now = Desired.from_json(decode(paths.desired, desired[0]))
        if not change.starts_from(now, Assigned.from_json(decode(paths.assigned, assigned[0]))):
            raise CoordinationError("others have changed the desired workers; decide again")
        writes = [Write(paths.desired, change.desired.to_json(), desired[1].version)]
        if change.assigned is not None:
            writes.append(Write(paths.assigned, change.assigned.to_json(), assigned[1].version))
        return writes

    def _evictions(self, evict: Mapping[int, str], present: Sequence[bool]) -> list[Write]:
        """Return the writes that evict workers, except workers that are evicted already."""
        return [
            Write(
                self._nodes.paths.evicted_worker(worker),
                {"reason": reason, "term": self.term},
                create=True,
            )
            for (worker, reason), is_there in zip(evict.items(), present, strict=True)
            if not is_there
        ]

    def _answers(self, answers: Sequence[Request], present: Sequence[bool]) -> list[Write]:
        writes = []
        for answer, is_there in zip(answers, present, strict=True):
            if is_there:
                writes.append(Write(self._nodes.paths.request(answer.number), answer.to_json()))
            elif answer.accepted:  # the decision grants what its requester has withdrawn
                raise CoordinationError("a request was withdrawn meanwhile; decide again")
        return writes

    def _requests(self, asks: Iterable[Request]) -> list[Write]:
        """Return the writes that add requests of the leader itself to the job's requests."""
        prefix = f"{self._nodes.paths.requests}/r-"
        numberless = (replace(request, number=-1) for request in asks)  # ZooKeeper numbers them
        return [Write(prefix, request.to_json(), sequence=True) for request in numberless]
