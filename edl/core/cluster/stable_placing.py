"""Choose the nodes of each job's slots so that jobs that run keep what they have.

A policy decides how many slots each job has, and suggests nodes. For a job that starts, the
suggestion is followed where it can be. A job that runs is never moved for a better placement: it
keeps its slots up to its new number, gives them back on nodes that are silent, then where it has
the fewest, and gets further ones on its own nodes first. So all jobs can always reach their new
slots: a slot is given back before, and never in exchange for, another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.cluster.state import Placement, slot_count

Slots = Mapping[str, int]
"""Node -> number of slots there; no number is 0."""


@dataclass(frozen=True)
class JobSize:
    """A job whose number of slots is decided, and which needs nodes."""

    name: str
    size: int  # the number of slots
    present: Slots  # node -> the slots that the job has there now
    suggested: Placement  # (node, number of slots) pairs that the policy suggests
    # node -> the most slots that it may have there; a node that is not in it has no slots for the
    # job
    limits: Slots
    # returns the largest allowed size up to a number of slots, or None
    fit: Callable[[int], int | None]


@dataclass
class _Nodes:
    """The free slots of each node, in the order of the nodes; changed as slots are taken."""

    free: dict[str, int]  # node -> the number of its slots that no job has taken yet
    # node -> how many of these slots belong to jobs that are served later; they are given last
    avoided: Slots = field(default_factory=dict)
    silent: Collection[str] = ()  # the nodes that may be lost, on which slots are given back first

    def room(self, job: JobSize, placed: Slots, node: str, spare: bool = True) -> int:
        """Return how many slots of `node` a job can get beside those in `placed`."""
        # `spare` leaves slots alone of jobs that are served later.
        free = self.free[node] - (self.avoided.get(node, 0) if spare else 0)
        return max(0, min(free, job.limits.get(node, 0) - placed.get(node, 0)))

    def rooms(self, job: JobSize, placed: Slots, spare: bool) -> dict[str, int]:
        """Return how many slots a job can get, above 0, on its own nodes; if on none, on others."""
        free = [node for node, count in self.free.items() if count > 0]
        for nodes in ([node for node in free if node in placed], free):
            found = ((node, self.room(job, placed, node, spare)) for node in nodes)
            if rooms := {node: count for node, count in found if count}:
                return rooms
        return {}

    def take(self, placed: dict[str, int], node: str, count: int) -> None:
        """Take `count` of the free slots of `node` for a job; there must be so many."""
        if count:
            self.free[node] -= count
            placed[node] = placed.get(node, 0) + count


def place_stably(
    jobs: Sequence[JobSize],
    nodes: Slots,
    avoided: Slots | None = None,
    silent: Collection[str] = (),
) -> dict[str, dict[str, int]]:
    """Return the slots of each job by node, as near as possible to what the jobs have."""
    free = _Nodes(dict(nodes), avoided or {}, silent)
    kept = {job.name: _kept(job, free) for job in jobs}
    running = [job for job in jobs if kept[job.name]]
    placed: dict[str, dict[str, int]] = {}
    for job in (*running, *(job for job in jobs if not kept[job.name])):
        slots = kept[job.name]
        if not slots:
            _follow(job, slots, free)
        _grow(job, slots, free, spare=True)
        _grow(job, slots, free, spare=False)
        _shrink(job, slots, free, job.fit(sum(slots.values())) or 0)
        if slots:
            placed[job.name] = slots
    return placed


def trimmed(slots: Slots, size: int, silent: Collection[str] = ()) -> dict[str, int]:
    """Return `slots` without those beyond `size`, and without nodes that have none."""
    left = {node: count for node, count in slots.items() if count}
    surplus = sum(left.values()) - size
    while surplus > 0:
        last = sorted(left, reverse=True)
        node = min(last, key=lambda name: (name not in silent, left[name]))
        taken = min(surplus, left[node])
        left[node] -= taken
        surplus -= taken
        if not left[node]:
            del left[node]
    return left


def _kept(job: JobSize, nodes: _Nodes) -> dict[str, int]:
    """Take from `nodes` the slots that a job has now and goes on using; return them by node."""
    placed: dict[str, int] = {}
    able = {node: min(count, nodes.free.get(node, 0)) for node, count in job.present.items()}
    able = {node: min(count, job.limits.get(node, 0)) for node, count in able.items()}
    for node, count in trimmed(able, job.size, nodes.silent).items():
        nodes.take(placed, node, count)
    return placed


def _follow(job: JobSize, placed: dict[str, int], nodes: _Nodes) -> None:
    """Give a job without slots those that the policy suggests, if all are free."""
    suggested = dict(job.suggested)
    fits = all(nodes.room(job, placed, node) >= count for node, count in suggested.items())
    if fits and slot_count(job.suggested) == job.size:
        for node, count in suggested.items():
            nodes.take(placed, node, count)


def _grow(job: JobSize, placed: dict[str, int], nodes: _Nodes, spare: bool) -> None:
    """Take the slots that `job` lacks: on its own nodes, then on as few others as possible."""
    while (lacking := job.size - sum(placed.values())) > 0:
        room = nodes.rooms(job, placed, spare)
        if not room:
            return

        def rank(node: str, room: Slots = room, lacking: int = lacking) -> tuple[bool, int]:
            # the fewest that are enough, else the most
            enough = room[node] >= lacking
            return not enough, room[node] if enough else -room[node]

        node = min(room, key=rank)
        nodes.take(placed, node, min(lacking, room[node]))


def _shrink(job: JobSize, placed: dict[str, int], nodes: _Nodes, size: int) -> None:
    """Return the slots of `job` beyond `size` to the free ones, as `trimmed` picks them."""
    fewer = trimmed(placed, size, nodes.silent)
    for node, count in list(placed.items()):
        nodes.free[node] += count - fewer.get(node, 0)
    placed.clear()
    placed.update(fewer)
