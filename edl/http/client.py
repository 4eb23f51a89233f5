"""Send plain HTTP requests with time-outs to the daemons of workers, and ask which are alive.

:func:`fetch` and :func:`send_change` send one request, :func:`answering` asks many workers. All
functions block the calling thread until the answers have come, or have failed: an exchange takes
two time-outs at most (:mod:`edl.http.server`), and an answer has a largest size.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from edl.errors import CoordinationError, RendezvousFailed
from edl.http.server import LimitedConnection
from edl.http.signing import SCHEME, authorization
from edl.job.script import Arithmetic, ScriptFits, ScriptOfJob, fits_of
from edl.records import Liveness, ProbeResult, RingMember

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
    """GET a path of a worker's daemon; the exchange takes up to twice `timeout_s`."""
    return _request("GET", address, port, path, None, timeout_s, most_bytes=most_bytes)[:2]


def http_put(
    address: str, port: int, path: str, body: bytes, timeout_s: float
) -> tuple[int, bytes]:
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
    response = _request(method, address, port, path, body, timeout_s)
    scheme, _, nonce = response.challenge.partition(" ")
    if response.status != 401 or scheme != SCHEME:
        return response[:2]
    # 401 again: the port belongs to another worker or job.
    signed = authorization(key, nonce, worker, method, path, body)
    response = _request(method, address, port, path, body, timeout_s, signed)
    return response[:2]


def script_of(member: RingMember) -> ScriptOfJob | None:
    """Ask a worker's daemon to describe its script; None without a valid answer in time."""
    try:
        status, body = fetch(member.address, member.port, MODEL_PATH, MODEL_S)
        if status != 200:
            return None
        said = json.loads(body)
        fits = ScriptFits(fits_of(said["done"]), said["begun"])
        arithmetic = Arithmetic.from_json(said.get("arithmetic", {}))
        protocol = int(said.get("protocol", 0))
        return ScriptOfJob(said["signature"], fits, said.get("epoch"), arithmetic, protocol)
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
    """The result of asking a worker's daemon for the health of the worker, by `ask`."""

    # REFUSED: no process listens at the port; SILENT: no answer came
    liveness: Liveness
    report: Mapping[str, Any] = field(default_factory=dict)  # what it says of itself

    def answer(self, run: str) -> ProbeResult:
        """Return the liveness and who answered: perhaps another worker, or "w3 of another job"."""
        name = self.report.get("worker")
        if name is not None and self.report.get("run", run) != run:
            name = f"{name} of another job"
        return ProbeResult(self.liveness, name)


def ask(address: str, port: int, timeout_s: float) -> Health:
    for _ in range(2):
        try:
            _, body = fetch(address, port, "/health", timeout_s, HEALTH_BYTES)
        except ConnectionRefusedError:
            return Health(Liveness.REFUSED)
        except RendezvousFailed as error:
            if isinstance(error.__cause__, ConnectionResetError | http.client.RemoteDisconnected):
                continue  # it may be dying at this moment: then the next connection is refused
            return Health(Liveness.SILENT)
        with suppress(ValueError, RecursionError):
            if isinstance(report := json.loads(body), dict):
                return Health(Liveness.ALIVE, report)
        return Health(Liveness.ALIVE)
    return Health(Liveness.SILENT)


def ask_all(ports: Mapping[int, tuple[str, int]], timeout_s: float) -> dict[int, Health]:
    """Ask all daemons, 32 at a time: a host that is out of reach costs about one time-out."""
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
    """Return the workers that answer on their own port; the others need not be dead."""
    answers = ask_all({member.id: (member.address, member.port) for member in members}, timeout_s)
    return frozenset(
        worker
        for worker, health in answers.items()
        if health.answer(run) == ProbeResult(Liveness.ALIVE, f"w{worker}")
    )


def tell_end(key: str, members: Iterable[RingMember], reason: str) -> int:
    """Tell workers, all at once, that their job ends; return how many have confirmed it."""
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


def rendezvous_path(port: int, scope: str, key: str) -> str:
    return f"/{scope}:{port}/{key}"


class _Response(NamedTuple):
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
