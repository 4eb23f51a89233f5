"""One worker leaves, or one host with all of them."""

from __future__ import annotations

from functools import partial

from edl.client.waiting import Story, looks, running
from edl.coordination.store import JobStore
from edl.core.facts import Request, Snapshot
from edl.core.placement import drain_host as plan_without
from edl.errors import TimedOut, UsageError


def drain_worker(store: JobStore, worker: int, timeout_s: float) -> str:
    """Let one worker leave; what the leader answered.

    Raises:
        UsageError: the job does not run, or the leader refuses.
        TimedOut: no leader answered; the request is taken back.
        JobEnded: the job ended before.
    """
    running(store, f"drain w{worker} of job {store.name}")
    number = store.add_request(Request("drain", worker))
    back = f"the request is taken back (see `edl status {store.name}`)"
    story = Story()
    story(f"no leader of job {store.name} has answered")
    try:
        for _ in looks(store, timeout_s, f"draining w{worker}", story, back):
            request = store.get_request(number)
            if request.done:
                break
    except TimedOut:
        store.remove_request(number)
        raise
    if not request.accepted:
        raise UsageError(request.outcome)
    return request.outcome


def drain_host(store: JobStore, name: str, timeout_s: float) -> str:
    """Let a host leave; that it has. Its agent ends when its workers have; without one, they leave.

    Raises:
        UsageError: the job does not run, has no such host, or too few workers would be left.
        TimedOut: it has not left yet; it was asked to, and may still do that.
        JobEnded: the job ended before.
    """
    what = f"drain host {name} of job {store.name}"
    _check_host(running(store, what), name)
    late = f"it was asked to, and may still do that (see `edl status {store.name}`)"
    for now in looks(store, timeout_s, f"draining host {name}", Story(), late):
        agent = next((host for host in now.hosts if host.name == name), None)
        if not now.job.state.over and now.plan.get(name):
            plan_without(now, name, now.plan)  # or says why it cannot leave
        if agent is not None and agent.slots and not agent.leaving:
            store.ask_host_to_leave(name)
        elif agent is None and now.plan.get(name):
            store.change_plan(partial(plan_without, now, name))
        elif agent is None and not any(member.host == name for member in now.members):
            break
    return f"host {name} has left job {store.name}"


def _check_host(now: Snapshot, name: str) -> None:
    job = now.job
    if job.driver:
        raise UsageError(
            f"cannot drain host {name}: job {job.name} was started by horovodrun, which places "
            "its workers; take the host out of what its host discovery script prints"
        )
    known = {host.name for host in now.hosts} | {*now.plan}
    if name not in known:
        hosts = ", ".join(sorted(known))
        raise UsageError(f"host {name} is not in job {job.name}; its hosts are {hosts}")
