"""Let one worker (:func:`drain_worker`) or one host (:func:`drain_host`) leave a running job."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from edl.client.waiting import USUAL, ClientLimits, Messages, looks, running
from edl.coordination.job_store import JobStore
from edl.core.job.placement import without_host as without_host
from edl.core.records import Request, RequestedBy, RequestKind
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, TimedOut, UsageError


def drain_worker(
    store: JobStore, worker: int, timeout_s: float, limits: ClientLimits = USUAL
) -> str:
    """Ask the leader to let one worker leave the job, and return the leader's answer."""
    running(store, f"drain w{worker} of job {store.name}", limits)
    try:
        number = store.requests.add(Request(RequestKind.DRAIN, worker))
    except CoordinationError as error:
        unsure = f"w{worker} may be asked to leave or not, see `edl status {store.name}`"
        raise CoordinationError(f"{error}; {unsure}") from error
    try:
        request = _answer(store, number, worker, timeout_s, limits)
    except TimedOut as late:
        after_all, state = _cancel(store, number, worker)
        if after_all is None:
            raise TimedOut(store.name, f"{late}; {state}") from None
        request = after_all
    except BaseException as end:
        end.add_note(_cancel(store, number, worker)[1])
        raise
    if not request.accepted:
        raise UsageError(request.outcome)
    return request.outcome


def _answer(
    store: JobStore, number: int, worker: int, timeout_s: float, limits: ClientLimits
) -> Request:
    """Return the request to drain a worker once the leader has answered it."""
    messages = Messages()
    messages(f"no leader of job {store.name} has answered")
    for _ in looks(store, timeout_s, f"draining w{worker}", messages, limits=limits):
        with suppress(CoordinationError):  # the next look asks again
            request = store.requests.get(number)
            if request.done:
                return request
    raise AssertionError("looks() ends with an error")


def _cancel(store: JobStore, number: int, worker: int) -> tuple[Request | None, str]:
    """Take a request back; return it if it is answered already, and a sentence for the user."""
    see = f"see `edl status {store.name}`"
    try:
        request = store.requests.cancel(number)
    except CoordinationError:
        return None, f"the request cannot be taken back now, and w{worker} may still leave ({see})"
    return request, request.outcome if request else f"the request is taken back ({see})"


def drain_host(store: JobStore, name: str, timeout_s: float, limits: ClientLimits = USUAL) -> str:
    """Let a host leave the job, wait until it has left, and return a sentence that says so."""
    what = f"drain host {name} of job {store.name}"
    _check_host(running(store, what, limits), name)
    late = f"it was asked to, and may still do that (see `edl status {store.name}`)"
    for now in looks(store, timeout_s, f"draining host {name}", Messages(), late, limits):
        agent = next((host for host in now.hosts if host.name == name), None)
        if not now.job.state.over and now.desired.hosts.get(name):
            without_host(now, name, now.desired.hosts)  # or says why it cannot leave
        if agent is not None and agent.slots and not agent.leaving:
            with suppress(CoordinationError):  # the next look asks again
                store.hosts.ask_to_leave(name)
        elif agent is None and now.desired.hosts.get(name):  # no agent: this process does it
            with suppress(CoordinationError):
                change = partial(without_host, now, name)
                store.set_desired(change, RequestedBy.LAUNCHER, f"edl drain: {name} leaves")
        elif agent is None and not any(member.host == name for member in now.members):
            break
    return f"host {name} has left job {store.name}"


def _check_host(now: Snapshot, name: str) -> None:
    """Raise a UsageError if the host cannot be drained."""
    job = now.job
    if now.assigned.by_slot:
        raise UsageError(
            f"cannot drain host {name}: job {job.name} was started by horovodrun, which places "
            "its workers; take the host out of what its host discovery script prints"
        )
    known = {host.name for host in now.hosts} | {*now.desired.hosts}
    if name not in known:
        hosts = ", ".join(sorted(known))
        raise UsageError(f"host {name} is not in job {job.name}; its hosts are {hosts}")
