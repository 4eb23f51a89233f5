"""Plain HTTP to another worker's daemon, with a deadline, and the proof that it is gone."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from edl.core.job.fits import ScriptFits, fits_of
from edl.core.job.liveness import Liveness, ProbeResult
from edl.core.job.signature import ScriptOfJob
from edl.core.records import RingMember
from edl.errors import RendezvousFailed
from edl.http.signing import SCHEME, authorization

ASK_AT_ONCE = 32
END_PATH = "/end"
MODEL_PATH = "/model"
MODEL_S = 5.0  # for one worker to say what its model is
END_TOLD_S = 5.0  # for one worker to answer that it knows


def fetch(
    address: str, port: int, path: str, timeout_s: float, generation: int = 0
) -> tuple[int, bytes]:
    """GET: the status and the body.

    ``timeout_s`` bounds the connection and then each wait for data. A GET of a rendezvous key
    is held by the server until the key arrives, so give it more than the server's 20 s.

    Raises:
        ConnectionRefusedError: nobody listens there: the process is gone.
        RendezvousFailed: no complete answer in time.
    """
    return _request("GET", address, port, path, None, timeout_s, generation)[:2]


def put(
    address: str, port: int, path: str, body: bytes, timeout_s: float, generation: int = 0
) -> tuple[int, bytes]:
    """PUT: the status and the body of the answer. Raises as :func:`fetch`."""
    return _request("PUT", address, port, path, body, timeout_s, generation)[:2]


def change(
    key: str,
    worker: int,
    method: str,
    address: str,
    port: int,
    path: str,
    timeout_s: float,
    body: bytes = b"",
) -> tuple[int, bytes]:
    """A signed request that changes something in ``worker``: status and body of the answer.

    ``key``: :func:`edl.http.signing.http_key`. 401: it is another one's, or another worker's port.
    Raises as :func:`fetch`.
    """
    response = _request(method, address, port, path, body, timeout_s, 0)
    scheme, _, nonce = response.challenge.partition(" ")
    if response.status != 401 or scheme != SCHEME:
        return response[:2]
    signed = authorization(key, nonce, worker, method, path, body)
    response = _request(method, address, port, path, body, timeout_s, 0, signed)
    return response[:2]


def script_of(member: RingMember) -> ScriptOfJob | None:
    """Ask the worker ``member`` for model and fits of its script; None: no answer in time."""
    try:
        status, body = fetch(member.address, member.port, MODEL_PATH, MODEL_S)
        if status != 200:
            return None
        said = json.loads(body)
        return ScriptOfJob(said["signature"], ScriptFits(fits_of(said["done"]), said["begun"]))
    except (OSError, ValueError, KeyError, TypeError, RendezvousFailed):
        return None


@dataclass(frozen=True)
class Health:
    """The answer of a daemon, or what its silence means."""

    liveness: Liveness
    report: Mapping[str, Any] = field(default_factory=dict)  # what it says of itself

    def answer(self, run: str) -> ProbeResult:
        """What of it may prove the death of a worker of the start ``run`` of its job.

        Its port may be used again, by another worker of that start or by one of another job.
        """
        name = self.report.get("worker")
        if name is not None and self.report.get("run", run) != run:
            name = f"{name} of another job"
        return ProbeResult(self.liveness, name)


def ask(address: str, port: int, timeout_s: float) -> Health:
    """What the daemon on that port says of its worker. Any HTTP answer counts."""
    for _ in range(2):
        try:
            _, body = fetch(address, port, "/health", timeout_s)
        except ConnectionRefusedError:
            return Health(Liveness.REFUSED)
        except RendezvousFailed as error:
            if isinstance(error.__cause__, ConnectionResetError | http.client.RemoteDisconnected):
                continue  # it may be dying at this moment: then the next connection is refused
            return Health(Liveness.SILENT)
        return Health(Liveness.ALIVE, _object(body))
    return Health(Liveness.SILENT)


def ask_all(ports: Mapping[int, tuple[str, int]], timeout_s: float) -> dict[int, Health]:
    """:func:`ask` all workers at the same time: a cut-off host costs one time-out, not many."""
    answers: dict[int, Health] = {}
    open_ = list(ports.items())[::-1]

    def work() -> None:
        while open_:
            try:
                worker, (address, port) = open_.pop()
            except IndexError:
                return
            answers[worker] = ask(address, port, timeout_s)

    # No ThreadPoolExecutor: it refuses work as soon as the main thread has ended, and until this
    # process has left the job its daemon may still have to lead.
    threads = [
        threading.Thread(target=work, name="edl-ask", daemon=True)
        for _ in range(min(len(open_), ASK_AT_ONCE))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {worker: answers.get(worker, Health(Liveness.SILENT)) for worker in ports}


def answering(members: Iterable[RingMember], run: str, timeout_s: float) -> frozenset[int]:
    """Return the workers of ``members`` whose own port answers.

    Such a worker lives, whether or not it is in ZooKeeper.

    Args:
        members: the workers to ask.
        run: the start of the job; an answer of a worker of another start does not count.
        timeout_s: how long to wait for the answers.
    """
    answers = ask_all({member.id: (member.address, member.port) for member in members}, timeout_s)
    return frozenset(
        worker
        for worker, health in answers.items()
        if health.answer(run) == ProbeResult(Liveness.ALIVE, f"w{worker}")
    )


def tell_end(key: str, members: Iterable[RingMember], reason: str) -> int:
    """Tell the workers of ``members``, all at once, that their job ends; how many were told.

    ``key``: :func:`edl.http.signing.http_key`. See :mod:`edl.daemon.ending`.
    """
    told: list[int] = []

    def work(member: RingMember) -> None:
        to = member.address, member.port
        try:
            status, _ = change(key, member.id, "POST", *to, END_PATH, END_TOLD_S, reason.encode())
        except (OSError, RendezvousFailed):
            return
        if status == 200:
            told.append(member.id)

    threads = [threading.Thread(target=work, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(told)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def rendezvous_path(port: int, scope: str, key: str) -> str:
    """The path of ``key`` ("<horovod scope>/<key>") in the store of the daemon at ``port``."""
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
    generation: int,
    signed: str = "",
) -> _Response:
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        headers = {"Authorization": signed} if signed else {}
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        challenge = response.getheader("WWW-Authenticate", "")
        return _Response(response.status, response.read(), challenge)
    except ConnectionRefusedError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise RendezvousFailed(
            generation, f"{method} from {address}:{port} failed: {type(error).__name__} {error}"
        ) from error
    finally:
        connection.close()
