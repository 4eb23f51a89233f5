"""The ledger under anything: uneven workers, joins, leaves, deaths in mid-epoch, restores."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.step.ledger import (
    LeasePolicy,
    Ledger,
    Span,
    complete_step,
    free_leases,
    grant,
    restore,
    start_epoch,
)
from edl.step.record import StepRecord, StepRecords, check_records


def positions(spans: tuple[Span, ...]) -> list[int]:
    return [p for start, stop in spans for p in range(start, stop)]


def record(ledger: Ledger, worker: int, samples: int, wanted: int, step: int = 0) -> StepRecord:
    """Return the row of a worker that trains the first ``samples`` of its leases."""
    held = ledger.held_by(worker)
    position = held[0][0] if samples else -1
    return StepRecord(1, step, worker, ledger.epoch, samples, position, wanted, 1, ledger.digest())


class LedgerMachine(RuleBasedStateMachine):
    """Each worker has a replica of its own; what was trained is counted beside, by position."""

    @initialize(
        total=st.integers(1, 200),
        batch=st.integers(1, 16),
        lease_batches=st.integers(1, 8),
        size=st.integers(1, 5),
    )
    def start(self, total: int, batch: int, lease_batches: int, size: int) -> None:
        self.policy = LeasePolicy(batch, lease_batches)
        self.members = list(range(size))
        self.next_worker, self.step = size, 0
        self.trained: Counter[int] = Counter()
        ledger = start_epoch(total, 0)
        self.replicas = dict.fromkeys(self.members, ledger)

    @property
    def ledger(self) -> Ledger:
        return self.replicas[self.members[0]]

    def held(self, worker: int) -> int:
        return len(positions(self.ledger.held_by(worker)))

    def advance(self, takes: dict[int, int], needs: dict[int, int]) -> None:
        """One step: each worker trains some of what it holds, and asks up to its need."""
        before = self.ledger
        records = [
            record(
                before,
                w,
                min(takes.get(w, 0), self.policy.batch_size, self.held(w)),
                max(0, needs.get(w, 0) - self.held(w)),
                self.step,
            )
            for w in self.members
        ]
        table = StepRecords.of(records)
        check_records(table)
        for r in records:
            self.trained.update(positions(before.held_by(r.worker))[: r.samples])
        self.replicas = {
            w: complete_step(ledger, table, self.policy) for w, ledger in self.replicas.items()
        }
        self.step += 1
        self.check_grants(before, records)

    def check_grants(self, before: Ledger, records: list[StepRecord]) -> None:
        policy, free, size = self.policy, before.free_samples, len(records)
        longest = policy.lease_batches * policy.batch_size
        for r in records:
            got = self.held(r.worker) - len(positions(before.held_by(r.worker))) + r.samples
            if r.wanted == 0:
                assert got == 0, "nobody gets what it did not ask for"
            asked = policy.whole_batches(r.wanted)
            assert got <= max(asked, longest), "nobody holds more than its need and a lease"
            assert got <= max(asked, policy.share(free, size)), "leases shrink with what is left"
            if self.ledger.free:
                assert r.wanted == 0 or got > 0, "while positions are free, who needs gets"
                fair = free // size // policy.batch_size * policy.batch_size
                assert got >= min(asked, fair) or r.wanted == 0, "a fair part, in whole batches"

    # --- events ---

    @rule(data=st.data())
    def uneven_step(self, data: st.DataObject) -> None:
        amount = st.integers(0, 3 * self.policy.batch_size)
        takes = {w: data.draw(amount, f"w{w} takes") for w in self.members}
        needs = {w: data.draw(amount, f"w{w} needs") for w in self.members}
        self.advance(takes, needs)

    @rule(steps=st.integers(1, 10), ahead=st.integers(1, 4))
    def usual_steps(self, steps: int, ahead: int) -> None:
        full = self.policy.batch_size
        for _ in range(steps):
            self.advance(
                dict.fromkeys(self.members, full), dict.fromkeys(self.members, ahead * full)
            )

    @rule(joins=st.integers(0, 2), goes=st.sets(st.integers(0, 6)))
    def membership_changes(self, joins: int, goes: set[int]) -> None:
        """Old replicas move by themselves; newcomers get the snapshot of one of them."""
        stay = [w for i, w in enumerate(self.members) if i not in goes]
        stay = stay or self.members[:1]
        new = list(range(self.next_worker, self.next_worker + joins))
        self.next_worker += joins
        self.members = [*stay, *new]
        held = {w: self.replicas[stay[0]].held_by(w) for w in stay}
        self.replicas = {w: free_leases(self.replicas[w], self.members) for w in stay}
        for w in new:
            self.replicas[w] = restore(json.loads(json.dumps(self.ledger.snapshot())))
        assert {w: self.ledger.held_by(w) for w in stay} == held, "stayers keep what they hold"

    @rule(size=st.integers(1, 5))
    def restarted_from_a_checkpoint(self, size: int) -> None:
        """Other workers, another number of them, the same epoch."""
        saved = json.loads(json.dumps(self.ledger.snapshot()))
        self.members = list(range(self.next_worker, self.next_worker + size))
        self.next_worker += size
        self.replicas = {w: free_leases(restore(saved), self.members) for w in self.members}
        assert self.ledger.leased_samples == 0

    @precondition(lambda self: self.ledger.finished)
    @rule()
    def next_epoch(self) -> None:
        self.check_epoch()
        fresh = start_epoch(self.ledger.total, self.ledger.epoch + 1)
        self.trained.clear()
        self.replicas = dict.fromkeys(self.members, fresh)

    # --- what always holds ---

    @invariant()
    def every_position_is_in_one_place(self) -> None:
        ledger = self.ledger
        open_ = positions(ledger.free) + [p for _, s in ledger.leases for p in positions(s)]
        places = Counter(open_) + self.trained
        assert places == Counter(range(ledger.total))
        assert ledger.done == self.trained.total()
        assert ledger.finished == (self.trained.total() == ledger.total)

    @invariant()
    def all_replicas_are_equal(self) -> None:
        assert len(set(self.replicas.values())) == 1
        assert len({ledger.digest() for ledger in self.replicas.values()}) == 1
        assert restore(json.loads(json.dumps(self.ledger.snapshot()))) == self.ledger

    @invariant()
    def only_members_hold_leases(self) -> None:
        assert {w for w, _ in self.ledger.leases} <= set(self.members)

    # --- and in the end ---

    def check_epoch(self) -> None:
        assert self.trained == Counter(range(self.ledger.total)), "each sample exactly once"

    def teardown(self) -> None:
        """From any state the epoch ends, in a bounded number of steps."""
        if not hasattr(self, "replicas"):
            return
        full, left = self.policy.batch_size, self.ledger.total - self.ledger.done
        # Every step trains a batch wherever one is held; leases of one worker are the worst case.
        bound = 3 + -(-left // full) + len(self.members)
        for _ in range(bound):
            if self.ledger.finished:
                break
            self.advance(dict.fromkeys(self.members, full), dict.fromkeys(self.members, 2 * full))
        assert self.ledger.finished, f"{self.ledger} after {bound} more steps"
        self.check_epoch()


TestLedger = LedgerMachine.TestCase


@given(
    total=st.integers(1, 3000),
    batch=st.integers(1, 32),
    lease_batches=st.integers(1, 8),
    size=st.integers(1, 8),
    ahead=st.integers(2, 4),
)
@example(total=1797, batch=32, lease_batches=8, size=3, ahead=2)
def test_equal_workers_end_an_epoch_together(
    total: int, batch: int, lease_batches: int, size: int, ahead: int
) -> None:
    """The tail is balanced within one lease: nobody waits long for another's leases."""
    policy = LeasePolicy(batch, lease_batches)
    needs = [(w, ahead * batch) for w in range(size)]
    ledger = grant(start_epoch(total, 0), needs, policy)
    steps = 0
    while not ledger.finished:
        held = {w: len(positions(ledger.held_by(w))) for w in range(size)}
        if not ledger.free:
            longest = max(ahead * batch, policy.lease_batches * batch)
            assert max(held.values()) - min(held.values()) <= longest
        records = [
            record(ledger, w, min(batch, held[w]), max(0, ahead * batch - held[w]), steps)
            for w in range(size)
        ]
        assert sum(r.samples for r in records) > 0, "a step in which nobody trains"
        ledger = complete_step(ledger, StepRecords.of(records), policy)
        steps += 1
    ideal = -(-total // (batch * size))
    assert steps <= ideal + max(ahead, lease_batches)
