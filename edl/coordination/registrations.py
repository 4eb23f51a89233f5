"""Write and remove the ephemeral nodes of the processes of a job: workers, agents, edl-workers.

A job's ``JobStore`` has one object of each class: a :class:`MemberNodes` for the workers as
``members``, a :class:`HostNodes` for the agents as ``hosts``, and a :class:`SlotNodes` for the
`edl-worker` processes under horovodrun as ``slots``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import NoNodeError

from edl.coordination.election import nodes_of
from edl.coordination.nodes import ATTEMPTS, JobNodes, content, first_of
from edl.coordination.paths import candidate_name, sequence
from edl.coordination.reads import children, delete_node, get
from edl.coordination.session import Refused
from edl.coordination.wire import decode
from edl.core.records import Assigned, Host, Member, SlotRecord
from edl.errors import AgentExists, CoordinationError, UnknownJob


class MemberNodes:
    """The nodes of the workers of one job, their candidate nodes, and the evictions of workers."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def new_id(self) -> int:
        """Return a worker id that no other worker of this start of the job has; ids grow from 0."""
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
        session.read_all("get a worker id", [delete_node(path)])
        return first_of(ids, answer) + sequence(path)

    def put(self, member: Member) -> None:
        """Write the node of a worker, which lives as long as this session."""
        paths, ours = self._nodes.paths, partial(_is_of, member.attempt_id)
        if not self._nodes.put_ephemeral(paths.member(member.id), member, ours):
            raise CoordinationError(
                f"worker id {member.id} of job {paths.name} belongs to another launch than "
                f"{member.attempt_id!r}; ids must come from MemberNodes.new_id()"
            )

    def remove(self, worker: int, attempt_id: str) -> None:
        """Remove the nodes of a dead worker: no candidate waits until its session ends."""
        session, paths = self._nodes.session, self._nodes.paths
        run, own = f"{paths.run}/{self._nodes.run}", paths.member(worker)
        for _ in range(ATTEMPTS):
            member, candidates = session.read_all(
                "read a member", [get(own), children(paths.election)]
            )
            if member is not None and not _is_of(attempt_id, decode(own, member[0])):
                return
            nodes = [] if member is None else [own]
            names = nodes_of(candidates or (), candidate_name(worker))
            nodes += [f"{paths.election}/{name}" for name in names]
            if not nodes:
                return
            try:
                session.transact("remove a member", partial(_remove, run=run, nodes=nodes))
            except Refused as refused:
                if refused.is_missing(0):
                    return  # the job was started again
                continue  # one of the nodes has gone meanwhile
            return
        raise self._nodes.changed_too_often(own)

    def forget_evicted(self, workers: Iterable[int]) -> None:
        """Remove the eviction records of workers whose processes do not exist any more."""
        evicted = [self._nodes.paths.evicted_worker(worker) for worker in workers]
        self._nodes.session.read_all("forget the evicted", [delete_node(path) for path in evicted])


def _is_of(attempt_id: str, values: Mapping[str, Any]) -> bool:
    return Member.from_json(values).attempt_id == attempt_id


def _remove(transaction: TransactionRequest, run: str, nodes: Iterable[str]) -> None:
    """Add to `transaction` a check that the node `run` exists and the removal of `nodes`."""
    transaction.check(run, -1)
    for node in nodes:
        transaction.delete(node)


class HostNodes:
    """The nodes of the agents of a job, one for each host."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, host: Host, is_dead: Callable[[Host], bool] = lambda _: False) -> None:
        """Write the node of the agent that `host` describes; it lives as long as this session."""
        # Else an agent that slept could declare a device that another job has got meanwhile.
        owner = host

        def ours(values: Mapping[str, Any]) -> bool:
            nonlocal owner
            owner = Host.from_json(values)
            return owner.is_same_agent(host) or is_dead(owner)

        def devices_are_granted() -> Mapping[str, int]:
            if not host.devices:
                return {}
            answer = self._nodes.read(get(paths.assigned))[0]
            if answer is None:
                raise self._nodes.unknown()
            assigned = Assigned.from_json(content(paths.assigned, answer))
            if not all(assigned.grants(host.name, device) for device in host.devices):
                raise CoordinationError(
                    f"the devices of job {paths.name} on host {host.name} were changed; nothing "
                    "was written: read the job again"
                )
            return {paths.assigned: answer[1].version}

        paths = self._nodes.paths
        if not self._nodes.put_ephemeral(paths.host(host.name), host, ours, devices_are_granted):
            raise AgentExists(host.name, paths.name, owner.pid, owner.address)

    def ask_to_leave(self, name: str) -> bool:
        """Write into the node of a host's agent the request to take the host out of the job."""
        # Lost if the session of the agent ends, as the agent then writes its node anew.
        node = self._nodes.paths.host(name)
        try:
            self._nodes.compare_and_set(node, lambda host: {**host, "leaving": True})
        except UnknownJob:
            return False
        return True


class SlotNodes:
    """The nodes of the edl-worker processes of a job under horovodrun, one for each slot."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, slot: SlotRecord) -> None:
        """Write the node of the edl-worker that `slot` describes; it ends with this session."""
        node = self._nodes.paths.slot(slot.host, slot.slot)
        # horovodrun's driver has one process in a slot: the node of an earlier one is replaced.
        self._nodes.put_ephemeral(node, slot, lambda values: True)
