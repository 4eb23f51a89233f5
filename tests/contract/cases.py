"""What every ring does, written once: run by each of its members, in a thread or a process.

A case gets its member and returns JSON values; `test_ring.py` looks at those of all members. The
members have the worker ids 0 to 2, and ``member.build`` takes those in rank order.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np

from edl.errors import RendezvousFailed, RingError, UsageError
from edl.records import Generation, RingMember
from edl.ring.ring import CollectiveFailed, Ring
from edl.step.record import StepRecord

WORKERS = 3
SIZES = (0, 1, 7, 2**15 - 9, 2**15 - 8, 2**15 - 7, 100_003)  # around the first piece of a message


class Member(Protocol):
    worker: int
    ring: Ring

    def generation(self, number: int, *workers: int) -> Generation: ...

    def average(self, array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]: ...

    def abort(self, generation: Generation) -> None:
        """Let who keeps the rendezvous of ``generation`` close it."""

    def now_s(self) -> float: ...


def ring_of(*workers: int, port: int = 1) -> tuple[RingMember, ...]:
    return tuple(RingMember(worker, "host", worker, "127.0.0.1", port) for worker in workers)


def build(member: Member, number: int, *workers: int) -> None:
    generation = member.generation(number, *workers)
    rank = generation.rank_of(member.worker)
    assert rank is not None
    member.ring.build(generation, rank)


def row(worker: int, samples: int = 0) -> StepRecord:
    return StepRecord(1, 2, worker, 0, samples, -1, 0, 0, 0)


def gather(member: Member) -> list[int]:
    return [
        each.worker
        for each in member.ring.finish_record(member.ring.start_record(row(member.worker)))
    ]


def fails(member: Member) -> float:
    """How long until the ring of generation 1 fails, perhaps on one that still builds it."""
    began = member.now_s()
    try:
        if not member.ring.is_open:
            build(member, 1, 0, 1, 2)
        while True:
            member.ring.barrier(row(member.worker))
    except RingError:
        member.ring.break_()
        member.ring.close()
    return member.now_s() - began


def rows_come_in_rank_order(member: Member) -> Any:
    build(member, 1, 2, 0, 1)
    rank, size = member.ring.place.rank, member.ring.place.size
    answers = [gather(member), gather(member)]
    member.ring.close()
    return [rank, size, answers]


def broadcasts_of_any_size(member: Member) -> Any:
    build(member, 1, 0, 1, 2)
    received = []
    for size in SIZES:
        for root in range(WORKERS):
            mine = bytes([root + 1]) * size if member.ring.place.rank == root else b"ignored"
            data = member.ring.broadcast(mine, root, f"message.{size}.{root}")
            received.append([len(data), hashlib.sha256(data).hexdigest()])
    member.ring.close()
    return received


def payloads_of_any_size_are_exchanged(member: Member) -> Any:
    build(member, 1, 0, 1, 2)
    answers = []
    for size in (*SIZES, 8, 16):
        payload = bytes([member.worker + 1]) * (size * member.worker)
        received = member.ring.exchange(payload)
        answers.append([[len(data), hashlib.sha256(data).hexdigest()] for data in received])
    member.ring.close()
    return answers


def gradients_are_averaged(member: Member) -> Any:
    build(member, 1, 0, 1, 2)
    average = member.average(np.full(5, float(member.worker)), "edl.gradient.a")
    again = member.average(np.full(5, 2.0 * member.worker), "edl.gradient.a")
    member.ring.close()
    return [average.tolist(), again.tolist()]


def what_does_not_fit_is_refused(member: Member) -> Any:
    """On all members, and the ring stays whole."""
    build(member, 1, 0, 1, 2)
    refused = False
    try:
        member.average(np.ones(member.worker + 1), "edl.gradient.a")
    except UsageError:
        refused = True
    answers = gather(member)
    member.ring.close()
    return [refused, answers]


def alone_nothing_is_sent(member: Member) -> Any:
    build(member, 1, member.worker)
    answers = [
        member.ring.alone,
        gather(member),
        member.ring.exchange(b"alone")[0].decode(),
        member.ring.broadcast(b"mine", 0, "message").decode(),
    ]
    member.ring.barrier(row(member.worker))
    member.ring.close()
    member.ring.build_alone()
    answers.append(member.ring.place.size)
    member.ring.close()
    return answers


def a_cut_ends_the_ring_on_all(member: Member) -> Any:
    """Within a bound; and then those who are left build the next one."""
    if member.worker == 1:
        build(member, 1, 0, 1, 2)
        member.ring.break_(generation=77)  # another one's
        member.ring.break_()
    failed_s = fails(member)
    if member.worker == 1:
        return [failed_s, []]
    build(member, 2, 2, 0)
    answers = gather(member)
    member.ring.close()
    return [failed_s, answers]


def who_closes_ends_it_for_all(member: Member) -> Any:
    if member.worker == 2:
        build(member, 1, 0, 1, 2)
        member.ring.barrier(row(member.worker))
        member.ring.close()
        member.ring.close()
        return [0.0, member.ring.is_open]
    return [fails(member), member.ring.is_open]


def gradients_fail_with_the_ring(member: Member) -> Any:
    began = member.now_s()
    try:
        build(member, 1, 0, 1, 2)
        if member.worker == 0:
            member.ring.break_()
        for number in range(1000):
            member.average(np.ones(3), f"edl.gradient.{number}")
    except (CollectiveFailed, RendezvousFailed):
        member.ring.break_()
        member.ring.close()
        return member.now_s() - began
    return -1.0


def a_rendezvous_that_is_given_up_fails_and_the_next_one_works(member: Member) -> Any:
    generation = member.generation(1, 0, 1, 2)
    refused = member.worker == 2
    if member.worker == 2:
        member.abort(generation)
    else:
        try:
            member.ring.build(generation, member.worker)
        except RendezvousFailed as error:
            refused = error.generation == generation.number
    states = [member.ring.is_open, member.ring.is_building, member.ring.membership[0]]
    build(member, 2, 1, 2, 0)
    answers = gather(member)
    member.ring.close()
    return [refused, states, answers]


def newcomers_hear_that_the_others_go(member: Member) -> Any:
    generation = member.generation(1, 0, 1, 2)
    if member.worker == 0:
        member.ring.announce_switch(generation)
    while not member.ring.wait_for_announcement(generation):
        pass
    build(member, 1, 0, 1, 2)
    answers = gather(member)
    member.ring.close()
    return answers


def rings_follow_each_other(member: Member) -> Any:
    answers = []
    for number in range(1, 6):
        first = number % WORKERS
        build(member, number, first, (first + 1) % WORKERS, (first + 2) % WORKERS)
        answers.append(gather(member))
        member.ring.barrier(row(member.worker))
        member.ring.close()
    return answers
