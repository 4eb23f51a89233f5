"""Carry out a request of a page: a verb of the command line, by the same client."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from edl.client.changes import stands
from edl.client.job import Job
from edl.cluster.client.client import Cluster
from edl.dashboard.answers import json_answer
from edl.errors import EdlError, UsageError
from edl.http.signing import decoded_json
from edl.text import seconds

logger = logging.getLogger(__name__)


WAIT_S = 60.0  # for workers, a host or the job to end; then the page says that it goes on
SOURCE = "the dashboard"  # of a policy, in messages
Values = Mapping[str, Any]  # of a request by name, as JSON has them


LASTING_VERBS = {"policy", "policy-off", "policy-resume"}  # which a cluster does not undo
JOB_VERBS = {"scale", "drain", "drain-host", "migrate", "preempt", "stop"} | LASTING_VERBS
CLUSTER_VERBS = {"halt", "resume", "delete", "priority", "drain", "undrain"}


def act_on_job(job: Job, verb: str, values: Values) -> str:
    match _known(verb, JOB_VERBS):
        case "scale":
            return str(job.scale(_number(values, "np")))
        case "drain":
            return job.drain(_number(values, "worker"))
        case "drain-host":
            return job.drain_host(_text(values, "host"), WAIT_S)
        case "migrate":
            np = None if values.get("np") is None else _number(values, "np")
            return str(job.migrate(_text(values, "from"), _text(values, "to"), np, WAIT_S))
        case "preempt":
            within = _text(values, "within")
            if not (within_s := seconds(within)):
                raise UsageError(f"{within} is no time to save in; write it as 30s, or 2m")
            return job.preempt(within_s, WAIT_S)
        case "policy":
            return f"policy of {SOURCE}: {stands(job.set_policy(_text(values, 'text'), SOURCE))}"
        case "policy-off":
            job.switch_policy_off()
            return "the policy is off; the job keeps its size"
        case "policy-resume":
            job.resume_policy()
            return "the policy decides again"
        case _:
            return job.stop(WAIT_S)


def check_of_cluster(job: str, verb: str) -> None:
    """Raise an error if a cluster would undo `verb` on its job `job`."""
    if verb in JOB_VERBS and verb not in LASTING_VERBS:
        raise UsageError(
            f"job {job} is one of a cluster, which decides how many workers it has and where; halt "
            "it, or change its priority"
        )


def act_on_cluster(cluster: Cluster, verb: str, values: Values) -> str:
    name = _text(values, "host" if _known(verb, CLUSTER_VERBS).endswith("drain") else "job")
    match verb:
        case "halt":
            cluster.halt(name)
            return f"job {name} is to halt"
        case "resume":
            cluster.resume(name)
            return f"job {name} is to run"
        case "priority":
            priority = _number(values, "priority")
            cluster.priority(name, priority)
            return f"job {name} has priority {priority}"
        case "drain":
            cluster.hosts.drain(name)
            return f"host {name} is drained"
        case "undrain":
            cluster.hosts.undrain(name)
            return f"host {name} may have jobs again"
        case _:
            if cluster.delete(name).removed:  # it had ended
                return f"the records of job {name} will be removed"
            return f"job {name} will be deleted"


def _known(verb: str, verbs: set[str]) -> str:
    if verb not in verbs:
        raise UsageError(f"there is no action {verb[:40]!r}; there are {', '.join(sorted(verbs))}")
    return verb


def _number(values: Values, name: str) -> int:
    found = values.get(name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise UsageError(f"{name} must be a whole number; give one")
    return found


def _text(values: Values, name: str) -> str:
    found = values.get(name)
    if not isinstance(found, str) or not found.strip():
        raise UsageError(f"{name} is missing; give one")
    return found.strip()


# --- Let pages change something: only with the second token, and only for the page of this server.
#
# A request that changes something is a POST with JSON. It needs the token of the page, and in the
# header `Edl-Actions` the token that `edl dashboard --actions` has printed, which each start of the
# server makes anew. Another web page cannot set these headers without a question to this server,
# which it does not answer; there are no cookies.


HEADER = "edl-actions"
MAX_BYTES = 65536  # of a request: the text of a policy is the largest
MAX_ACTIONS = 8  # at the same time; each has a thread and a session
NO_ACTIONS = (
    "this dashboard only reads; `edl dashboard --actions` prints an address with which it also "
    "changes something"
)
NO_TOKEN = (
    "this page only reads: its address has not the token for actions of this start of the server; "
    "open the address that `edl dashboard --actions` has printed last"
)
ANOTHER_PAGE = "another web page has asked for this; use the page of the dashboard itself"

# Carries out a verb on a job, or on the cluster if the job is empty, with values by name; returns
# what was done, as a sentence. It runs in a thread of its own.
Act = Callable[[str, str, Mapping[str, Any]], str]


class ActionRunner:
    """The actions of a server, and the token that they need."""

    def __init__(self, act: Act | None = None) -> None:
        self._act = act
        self._running = 0
        # the token; empty: the server only reads
        self.token = secrets.token_hex(32) if act is not None else ""

    def refusal(self, request: Request) -> str:
        """Return why `request` may not change anything, as a sentence; empty: it may."""
        if not self.token:
            return NO_ACTIONS
        given = request.headers.get(HEADER, "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return NO_TOKEN
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
            return ANOTHER_PAGE
        return ""

    async def act(self, job: str, verb: str, values: Mapping[str, Any]) -> str:
        if self._act is None:
            raise UsageError(NO_ACTIONS)
        if self._running >= MAX_ACTIONS:
            raise UsageError(f"{self._running} actions are under way; try again when they are done")
        self._running += 1
        try:
            return await in_daemon_thread(partial(self._act, job, verb, values))
        finally:
            self._running -= 1


async def in_daemon_thread(call: Callable[[], str]) -> str:
    done: Future[str] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(call())
        except EdlError as error:
            done.set_exception(error)
        except Exception as error:
            logger.exception("an action of the dashboard has failed")
            done.set_exception(EdlError(f"the action has failed, a defect of edl: {error!r}"))

    # The end of the server does not wait for it, as it would for an executor's: an action may take
    # a minute, and goes on in the job.
    threading.Thread(target=run, name="edl-action", daemon=True).start()
    return await asyncio.wrap_future(done)


async def act(request: Request) -> Response:
    """Carry out a request for an action, whose path names the verb, and maybe the job."""
    runner: ActionRunner = request.app.state.action_runner
    if refusal := runner.refusal(request):
        return json_answer({"message": refusal}, 403)
    try:
        values = await _values(request)
        job, verb = request.path_params.get("job", ""), request.path_params["verb"]
        return json_answer({"message": await runner.act(job, verb, values)})
    except EdlError as error:
        return json_answer({"message": str(error)}, 400)


async def _values(request: Request) -> Mapping[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise UsageError(f"the request has more than {MAX_BYTES} bytes; shorten the text")
    try:
        return decoded_json(body, dict[str, Any])
    except UsageError as error:
        raise UsageError(f"the request is no JSON object: {error}") from None
