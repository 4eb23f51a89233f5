"""Plain HTTP to another worker's daemon, with a deadline, and the proof that it is gone."""

from __future__ import annotations

import http.client
from enum import StrEnum

from edl.errors import RendezvousFailed


class Liveness(StrEnum):
    """What a worker's port tells about its process."""

    ALIVE = "alive"  # it answered
    REFUSED = "refused"  # nobody listens: the process is gone, its machine is up
    SILENT = "silent"  # no answer in time: frozen, overloaded or cut off; proves nothing


ALIVE, REFUSED, SILENT = Liveness.ALIVE, Liveness.REFUSED, Liveness.SILENT


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
    return _request("GET", address, port, path, None, timeout_s, generation)


def put(
    address: str, port: int, path: str, body: bytes, timeout_s: float, generation: int = 0
) -> tuple[int, bytes]:
    """PUT: the status and the body of the answer. Raises as :func:`fetch`."""
    return _request("PUT", address, port, path, body, timeout_s, generation)


def probe(address: str, port: int, timeout_s: float) -> Liveness:
    """Whether a daemon answers on that port. Any HTTP answer counts.

    A port may be used again by another process: who needs to know which worker answers
    compares what ``fetch(..., "/health")`` says.
    """
    for _ in range(2):
        try:
            fetch(address, port, "/health", timeout_s)
        except ConnectionRefusedError:
            return REFUSED
        except RendezvousFailed as error:
            if isinstance(error.__cause__, ConnectionResetError | http.client.RemoteDisconnected):
                continue  # it may be dying at this moment: then the next connection is refused
            return SILENT
        return ALIVE
    return SILENT


def rendezvous_path(port: int, scope: str, key: str) -> str:
    """The path of ``key`` ("<horovod scope>/<key>") in the store of the daemon at ``port``."""
    return f"/{scope}:{port}/{key}"


def _request(
    method: str,
    address: str,
    port: int,
    path: str,
    body: bytes | None,
    timeout_s: float,
    generation: int,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionRefusedError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise RendezvousFailed(
            generation, f"{method} from {address}:{port} failed: {type(error).__name__} {error}"
        ) from error
    finally:
        connection.close()
