"""The audit of logical workers: what is trained twice, and how the bits are compared."""

from __future__ import annotations

from edl.step.ledger import Ledger
from edl.step.state_check import AuditMismatch, AuditResult, AuditSteps, AuditTable, Pass, repeated

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


def audited(window: AuditSteps, batches: range) -> list[int]:
    """Make the steps of these global batches; return those that were audited."""
    found = []
    for batch in batches:
        window.next_step(batch)
        found += [batch] if window.left else []
        window.end_step()
    return found


def test_steps_are_audited_after_a_start_a_join_and_a_resumption() -> None:
    window = AuditSteps(2)
    window.enter_ring((0, 1))
    assert audited(window, range(3)) == [0, 1]
    assert window.newcomers == frozenset(), "nobody was there before"
    window.enter_ring((1,))
    assert audited(window, range(3, 5)) == [], "one has left"
    window.enter_ring((1, 2))
    assert audited(window, range(5, 6)) == [5]
    assert audited(window, range(3)) == [0], "it goes on in the next epoch"
    assert window.newcomers == {2}
    window.resume()
    assert audited(window, range(7, 10)) == [7, 8]


def test_a_step_that_goes_on_in_a_new_ring_is_not_audited() -> None:
    window = AuditSteps(3)
    window.enter_ring((0, 1, 2))
    window.next_step(0)
    assert [window.has(batch) for batch in (0, 2, 3)] == [True, True, False]
    window.enter_ring((0, 1))
    assert (window.left, window.has(0)) == (0, False)
    window.end_step()
    assert audited(window, range(1, 6)) == [1, 2, 3]


def test_a_newcomer_has_the_window_of_the_others() -> None:
    window, new = AuditSteps(3), AuditSteps(3)
    for one in (window, new):
        one.enter_ring((0, 4))
    window.next_step(7)
    new.next_step(0)
    new.take_over(window.header())
    window.end_step()
    new.end_step()
    assert audited(new, range(8, 12)) == audited(window, range(8, 12)) == [8, 9]


def test_only_a_newcomer_that_differs_from_an_old_worker_ends_alone() -> None:
    assert AuditMismatch(0, 3, 5, "x").differing_newcomer({5}) == 5
    assert AuditMismatch(0, 5, 3, "x").differing_newcomer({5, 6}) == 5
    assert AuditMismatch(0, 3, 4, "x").differing_newcomer({5}) is None
    assert AuditMismatch(0, 5, 6, "x").differing_newcomer({5, 6}) is None
    assert AuditMismatch(0, 5, 5, "x").differing_newcomer({5}) is None
