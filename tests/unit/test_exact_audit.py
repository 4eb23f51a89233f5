"""The audit of logical workers: what is trained twice, and how the bits are compared."""

from __future__ import annotations

from edl.core.step.exact_audit import AuditMismatch, AuditResult, AuditTable, Pass, repeated
from edl.core.step.ledger import Ledger

# Three workers share the positions 0 to 10, two of them the positions 10 to 13.
LEDGER = Ledger(13, 0, (), ((4, ((0, 4), (10, 12))), (2, ((4, 8), (12, 13))), (7, ((8, 10),))))
MEMBERS = (4, 2, 7)


def test_each_worker_repeats_the_slice_of_the_next_one() -> None:
    found = [repeated(LEDGER, worker, MEMBERS, (0, 10)) for worker in MEMBERS]
    assert found == [((4, 8),), ((8, 10),), ((0, 4),)]
    last = [repeated(LEDGER, worker, MEMBERS, (10, 13)) for worker in MEMBERS]
    assert last == [((12, 13),), ((10, 12),), ()], "of those that have a slice"
    assert repeated(LEDGER, 7, (7,), (0, 10)) == ((8, 10),)


def summed(table: AuditTable, *lists: list[float]) -> AuditResult:
    return table.compare([sum(numbers) for numbers in zip(*lists, strict=True)])


def test_both_passes_of_each_logical_worker_are_compared() -> None:
    table = AuditTable(2, ["first", "second"])
    mine = table.filled(
        4, {Pass(0, False): {"first": 0, "second": 5}, Pass(1, True): {"first": 2**32 - 1}}
    )
    theirs = {Pass(1, False): {"first": 2**32 - 1}, Pass(0, True): {"first": 0, "second": 5}}
    assert summed(table, mine, table.filled(2, theirs)) == AuditResult(2, 2, None)
    other = theirs | {Pass(0, True): {"first": 0, "second": 6}}
    difference = AuditMismatch(0, 4, 2, "second")
    assert summed(table, mine, table.filled(2, other)).difference == difference
    lacks = theirs | {Pass(0, True): {"second": 5}}  # the digest 0 is not the same as none
    assert summed(table, mine, table.filled(2, lacks)).difference == AuditMismatch(0, 4, 2, "first")
    del theirs[Pass(0, True)]
    assert summed(table, mine, table.filled(2, theirs)) == AuditResult(1, 1, None)


def test_the_only_worker_compares_with_itself() -> None:
    table = AuditTable(1, ["value"])
    own = table.filled(3, {Pass(0, False): {"value": 1}, Pass(0, True): {"value": 1}})
    assert summed(table, own) == AuditResult(1, 0, None)
