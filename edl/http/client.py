"""Send plain HTTP requests with time-outs to the daemons of workers, and ask which are alive.

:func:`fetch` and :func:`send_change` send one request, :func:`answering` asks many workers. All
functions block the calling thread until the answers have come, or have failed: an exchange takes
two time-outs at most (:mod:`edl.http.limited_connection`), and an answer has a largest size.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from edl.core.job.fits import ScriptFits, fits_of
from edl.core.job.liveness import Liveness, ProbeResult
from edl.core.job.signature import Arithmetic, ScriptOfJob
from edl.core.records import RingMember
from edl.errors import CoordinationError, RendezvousFailed
from edl.http.limited_connection import LimitedConnection
from edl.http.signing import SCHEME, authorization

ASK_AT_ONCE = 32
ANSWER_BYTES = 16 << 20  # the largest are a model's shapes, and 1 MiB of a log
HEALTH_BYTES = 1 << 20  # of the answers of 32 workers at the same time
END_PATH = "/end"
MODEL_PATH = "/model"
METRICS_PATH = "/metrics"  # of workers and agents, as Prometheus asks by default
TARGETS_PATH = "/targets"  # of agents: where all metrics of the job are
MODEL_S = 5.0  # for one worker to say what its model is
END_TOLD_S = 5.0  # for one worker to answer that it knows


def fetch(
    address: str, port: int, path: str, timeout_s: float, most_bytes: int = ANSWER_BYTES
) -> tuple[int, bytes]:
    """Send a GET to a worker's daemon; return a pair, the status and the body of the answer.

    An answer with an error status, such as 404, is returned like any other.

    Args:
        address: The address of the worker.
        port: The port of its daemon.
        path: The path to get, with the query if there is one.
        timeout_s: How long to wait for the connection, and then for each piece of data, in seconds;
            the whole exchange may take twice as long. A server answers a GET of a rendezvous key
            when the key was put, or after 20 s; so for such a path give more than 20.
        most_bytes: The size of the largest answer that is taken, with its head.

    Raises:
        ConnectionRefusedError: no process listens there, so the worker is gone.
        RendezvousFailed: no complete answer came: a time-out, a broken connection, no HTTP, or an
            answer that is too large.
    """
    return _request("GET", address, port, path, None, timeout_s, most_bytes=most_bytes)[:2]


def http_put(
    address: str, port: int, path: str, body: bytes, timeout_s: float
) -> tuple[int, bytes]:
    """Send an unsigned PUT to a worker's daemon; return a pair, the answer's status and body.

    An answer with an error status is returned like any other.

    Args:
        address: The address of the worker.
        port: The port of its daemon.
        path: The path to put to, such as that of a rendezvous key.
        body: The body of the request: the value to put.
        timeout_s: How long to wait for the connection, and then for each piece of data, in seconds;
            the whole exchange may take twice as long.

    Raises:
        ConnectionRefusedError: no process listens there, so the worker is gone.
        RendezvousFailed: no complete answer came: a time-out, a broken connection, no HTTP, or an
            answer that is too large.
    """
    return _request("PUT", address, port, path, body, timeout_s)[:2]


def send_change(
    key: str,
    worker: int,
    method: str,
    address: str,
    port: int,
    path: str,
    timeout_s: float,
    body: bytes = b"",
) -> tuple[int, bytes]:
    """Send a signed request that changes something in a worker, and return the answer.

    It is sent twice: first unsigned, to get a nonce, then signed. If the first answer is no demand
    for a signature, it is returned, and nothing more is sent.

    Args:
        key: The key of the job, from :func:`edl.http.signing.http_key`.
        worker: The id of the worker that the request is for.
        method: The HTTP method.
        address: The address of the worker.
        port: The port of its daemon.
        path: The path, with the query if there is one.
        timeout_s: How long to wait for each of the two connections, and then for each piece of
            data, in seconds; each of the two exchanges may take twice as long.
        body: The body of the request.

    Returns:
        A pair: status and body. The status is 401 if the signature was not accepted, because the
        port belongs to another worker or another job.

    Raises:
        ConnectionRefusedError: no process listens there, so the worker is gone.
        RendezvousFailed: no complete answer came: a time-out, a broken connection, or no HTTP.
    """
    response = _request(method, address, port, path, body, timeout_s)
    scheme, _, nonce = response.challenge.partition(" ")
    if response.status != 401 or scheme != SCHEME:
        return response[:2]
    signed = authorization(key, nonce, worker, method, path, body)
    response = _request(method, address, port, path, body, timeout_s, signed)
    return response[:2]


def script_of(member: RingMember) -> ScriptOfJob | None:
    """Ask a worker's daemon to describe its script: model, calls of Keras' ``fit``, epoch.

    Args:
        member: The worker, with the address and port of its daemon.

    Returns:
        The description; None if the worker gives no valid answer, or none for 5 s (``MODEL_S``), or
        not all of it in twice that time. Nothing is raised.
    """
    try:
        status, body = fetch(member.address, member.port, MODEL_PATH, MODEL_S)
        if status != 200:
            return None
        said = json.loads(body)
        fits = ScriptFits(fits_of(said["done"]), said["begun"])
        arithmetic = Arithmetic.from_json(said.get("arithmetic", {}))
        return ScriptOfJob(said["signature"], fits, said.get("epoch"), arithmetic)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        RendezvousFailed,
        CoordinationError,
    ):
        return None


@dataclass(frozen=True)
class Health:
    """The result of asking a worker's daemon for the health of the worker, by :func:`ask`.

    Attributes:
        liveness: ``ALIVE`` if the daemon answered, ``REFUSED`` if no process listens at its port,
            ``SILENT`` if no answer came.
        report: The JSON object of the answer: the worker's name, progress and activity; empty
            without an answer, or if that is no JSON object.
    """

    liveness: Liveness
    report: Mapping[str, Any] = field(default_factory=dict)  # what it says of itself

    def answer(self, run: str) -> ProbeResult:
        """Return the liveness with the name of the worker that answered, to prove a worker's death.

        The port of a dead worker may now belong to another worker, of this job or of another one.

        Args:
            run: The identifier of the start of the job that the worker belongs to.

        Returns:
            The liveness, and the name that the answer gives, such as "w3"; " of another job" is
            added if it was given with another identifier. The name is None without an answer that
            has one.
        """
        name = self.report.get("worker")
        if name is not None and self.report.get("run", run) != run:
            name = f"{name} of another job"
        return ProbeResult(self.liveness, name)


def ask(address: str, port: int, timeout_s: float) -> Health:
    """Ask the daemon at a port for the health of its worker.

    If the connection breaks before the answer, the daemon is asked once more.

    Args:
        address: The address of the worker.
        port: The port of its daemon.
        timeout_s: How long to wait for the connection, and then for each piece of data, in seconds;
            the whole exchange may take twice as long.

    Returns:
        ``ALIVE`` with the worker's report, after any HTTP answer, even an error; ``REFUSED`` if no
        process listens there; ``SILENT`` if no answer of at most 1 MiB (``HEALTH_BYTES``) came in
        time, or the connection broke twice. Nothing is raised.
    """
    for _ in range(2):
        try:
            _, body = fetch(address, port, "/health", timeout_s, HEALTH_BYTES)
        except ConnectionRefusedError:
            return Health(Liveness.REFUSED)
        except RendezvousFailed as error:
            if isinstance(error.__cause__, ConnectionResetError | http.client.RemoteDisconnected):
                continue  # it may be dying at this moment: then the next connection is refused
            return Health(Liveness.SILENT)
        return Health(Liveness.ALIVE, _object(body))
    return Health(Liveness.SILENT)


def ask_all(ports: Mapping[int, tuple[str, int]], timeout_s: float) -> dict[int, Health]:
    """Ask the daemons at all ``ports`` for their health, up to 32 at the same time.

    So the call takes about one time-out if all workers of a host are out of reach. It returns when
    all have answered or timed out.

    Args:
        ports: A pair, address and port, of each daemon, by worker id.
        timeout_s: How long to wait for each connection, and then for each piece of data, in
            seconds; each exchange may take twice as long.

    Returns:
        The health of each worker in ``ports`` (liveness and report), by worker id.
    """
    answers: dict[int, Health] = {}
    open_ = list(ports.items())[::-1]

    def work() -> None:
        while open_:
            try:
                worker, (address, port) = open_.pop()
            except IndexError:
                return
            answers[worker] = ask(address, port, timeout_s)

    _at_once([work] * min(len(open_), ASK_AT_ONCE))
    return {worker: answers.get(worker, Health(Liveness.SILENT)) for worker in ports}


def answering(members: Iterable[RingMember], run: str, timeout_s: float) -> frozenset[int]:
    """Return the ids of the workers of ``members`` that answer on their own port, so are alive.

    Up to 32 are asked at the same time. A worker that is not in the result need not be dead.

    Args:
        members: The workers to ask.
        run: The identifier of the start of the job; an answer of a worker of another start does not
            count.
        timeout_s: How long to wait for each connection, and then for each piece of data, in
            seconds; each exchange may take twice as long.
    """
    answers = ask_all({member.id: (member.address, member.port) for member in members}, timeout_s)
    return frozenset(
        worker
        for worker, health in answers.items()
        if health.answer(run) == ProbeResult(Liveness.ALIVE, f"w{worker}")
    )


def tell_end(key: str, members: Iterable[RingMember], reason: str) -> int:
    """Tell the workers ``members``, all at the same time, that their job ends.

    The call returns when each has confirmed or failed, after 5 s (``END_TOLD_S``) of silence, and
    20 s at most. It does not wait until the workers have ended.

    Args:
        key: The key of the job, from :func:`edl.http.signing.http_key`.
        members: The workers to tell.
        reason: Why the job ends, as a sentence.

    Returns:
        How many workers have confirmed that they know it. An error of the others is not raised.
    """
    told: list[int] = []

    def work(member: RingMember) -> None:
        to = member.address, member.port
        try:
            status, _ = send_change(
                key, member.id, "POST", *to, END_PATH, END_TOLD_S, reason.encode()
            )
        except (OSError, RendezvousFailed):
            return
        if status == 200:
            told.append(member.id)

    _at_once([partial(work, member) for member in members])
    return len(told)


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Run ``calls`` at the same time; return when all have ended.

    The caller runs the last one itself, and each other one has a thread of its own. The caller also
    runs those for which no thread can be started: at the limit of a user's or container's
    processes, or, with Python 3.12.0 and 3.12.1, after the end of the main thread.
    """
    # No ThreadPoolExecutor: it refuses work as soon as the main thread has ended, and until this
    # process has left the job its daemon may still have to lead.
    threads, left = [], [*calls[-1:]]
    for call in calls[:-1]:
        thread = threading.Thread(target=call, name="edl-ask", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            left.append(call)
        else:
            threads.append(thread)
    for call in left:
        call()
    for thread in threads:
        thread.join()


def _object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object in the HTTP ``body``; an empty one if the body is anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def rendezvous_path(port: int, scope: str, key: str) -> str:
    """Return the HTTP path of a key in the rendezvous store of a daemon.

    Args:
        port: The port of the daemon, which is a part of the path.
        scope: The random name under which the store keeps the keys of one generation.
        key: The key, in the form "<horovod scope>/<key>".

    Returns:
        The path "/<scope>:<port>/<key>".
    """
    return f"/{scope}:{port}/{key}"


class _Response(NamedTuple):
    """An HTTP answer.

    Attributes:
        status: The status code, such as 200.
        body: The bytes of the body; empty if there is none.
        challenge: The header ``WWW-Authenticate``, "EDL <nonce>" with the nonce to sign with; empty
            if the answer has no such header.
    """

    status: int
    body: bytes
    challenge: str  # WWW-Authenticate


def _request(
    method: str,
    address: str,
    port: int,
    path: str,
    body: bytes | None,
    timeout_s: float,
    signed: str = "",
    most_bytes: int = ANSWER_BYTES,
) -> _Response:
    """Send one HTTP request on a connection of its own, and return the answer.

    Args:
        method: The HTTP method.
        address: The address of the server.
        port: The port of the server.
        path: The path, with the query if there is one.
        body: The body; None for none.
        timeout_s: How long to wait for the connection, and then for each piece of data, in seconds;
            the whole exchange may take twice as long.
        signed: The value of the header ``Authorization``; empty for none.
        most_bytes: The size of the largest answer that is taken, with its head.

    Raises:
        ConnectionRefusedError: no process listens there.
        RendezvousFailed: no complete answer came: a time-out, a broken connection, no HTTP, an
            answer that is too large, or there is no such address or port.
    """
    try:
        with closing(LimitedConnection(address, port, timeout_s, most_bytes)) as connection:
            headers = {"Authorization": signed} if signed else {}
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            challenge = response.getheader("WWW-Authenticate", "")
            return _Response(response.status, response.read(), challenge)
    except ConnectionRefusedError:
        raise
    except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
        # ValueError: of a name that is none, or a chunk of a negative length.
        raise RendezvousFailed(
            0, f"{method} from {address}:{port} failed: {type(error).__name__} {error}"
        ) from error
