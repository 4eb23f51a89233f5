"""Who is here: the ephemeral nodes of workers, agents and edl-workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kazoo.exceptions import NoNodeError

from edl.coordination.election import nodes_of
from edl.coordination.nodes import JobNodes, first_of
from edl.coordination.paths import candidate_name, sequence
from edl.coordination.reads import children, delete, get
from edl.core.records import Host, Member, SlotRecord
from edl.errors import CoordinationError, UnknownJob, UsageError


class MemberNodes:
    """The workers of a job, and the evictions of those that are gone."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def new_id(self) -> int:
        """An id that no worker of this job had or will have; they grow from 0."""
        session, ids = self._nodes.session, self._nodes.paths.ids
        answer = self._nodes.read(get(ids))[0]
        if answer is None:
            raise self._nodes.unknown()
        try:
            path: str = session.call(
                "get a worker id",
                lambda c: c.create_async(f"{ids}/w-", ephemeral=True, sequence=True),
                repeat=True,
            )
        except NoNodeError:
            raise self._nodes.unknown() from None
        session.read_all("get a worker id", [delete(path)])
        return first_of(ids, answer) + sequence(path)

    def put(self, member: Member) -> None:
        """Write the member's node, which lives as long as this session.

        A node left by an earlier session of the same launch is taken over.

        Raises:
            CoordinationError: another launch has that id.
            UnknownJob: the job was replaced by a new one of that name.
        """

        def ours(values: Mapping[str, Any]) -> bool:
            return Member.from_json(values).attempt_id == member.attempt_id

        paths = self._nodes.paths
        if not self._nodes.put_ephemeral(paths.member(member.id), member, ours):
            raise CoordinationError(
                f"worker id {member.id} of job {paths.name} belongs to another launch than "
                f"{member.attempt_id!r}; ids must come from MemberNodes.new_id()"
            )

    def remove(self, worker: int) -> None:
        """Remove a member's node, and its candidacy; nothing happens when there is none.

        So nobody waits behind a dead candidate for the end of its session.
        """
        session, paths = self._nodes.session, self._nodes.paths
        candidates = session.read_all("read the election", [children(paths.election)])[0] or ()
        nodes = [paths.member(worker)]
        own = nodes_of(candidates, candidate_name(worker))
        nodes += [f"{paths.election}/{name}" for name in own]
        session.read_all("remove a member", [delete(node) for node in nodes])

    def forget_evicted(self, workers: Iterable[int]) -> None:
        """Remove what is written about workers that were evicted and are gone for good."""
        evicted = [self._nodes.paths.evicted_worker(worker) for worker in workers]
        self._nodes.session.read_all("forget the evicted", [delete(path) for path in evicted])


class HostNodes:
    """The agents of a job."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, host: Host) -> None:
        """Write the agent's node, which lives as long as this session.

        Raises:
            UsageError: the name belongs to another agent.
            UnknownJob: the job was replaced by a new one of that name.
        """

        owner = host

        def ours(values: Mapping[str, Any]) -> bool:
            nonlocal owner
            owner = Host.from_json(values)
            return (owner.address, owner.pid) == (host.address, host.pid)

        paths = self._nodes.paths
        if not self._nodes.put_ephemeral(paths.host(host.name), host, ours):
            raise UsageError(
                f"host {host.name!r} of job {paths.name} belongs to another agent, process "
                f"{owner.pid} at {owner.address}; choose another --host, or, if that agent has "
                "just died, wait until its session ends"
            )

    def ask_to_leave(self, name: str) -> bool:
        """Ask the agent of a host to take it out of the job; False: it has no agent.

        A new session of that agent begins without the question.
        """
        node = self._nodes.paths.host(name)
        try:
            self._nodes.compare_and_set(node, lambda host: {**host, "leaving": True})
        except UnknownJob:
            return False
        return True


class SlotNodes:
    """The edl-workers of a job under horovodrun."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, slot: SlotRecord) -> None:
        """Write the node of an edl-worker, which lives as long as this session.

        It takes over what another one has left: the driver has one process in a slot.

        Raises:
            UnknownJob: the job was replaced by a new one of that name.
        """
        node = self._nodes.paths.slot(slot.host, slot.slot)
        self._nodes.put_ephemeral(node, slot, lambda values: True)
