"""A server of uvicorn within a command that handles signals itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from edl.api.listening import BACKLOG
from edl.api.protocol import LimitProtocol

IDLE_S = 30.0  # of a connection, after which it is closed


@dataclass(frozen=True)
class TlsFiles:
    """The files of the certificate and the key with which a server serves TLS."""

    certificate: str  # the path of the certificate, in PEM, with its chain
    key: str  # the path of its key


def server_config(
    app: Any, connections: int, end_s: float, tls: TlsFiles | None = None
) -> uvicorn.Config:
    """Return the configuration of a server that logs nothing and closes idle connections."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=LimitProtocol,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=int(end_s),
        limit_concurrency=connections,
        backlog=BACKLOG,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )


class EmbeddedServer(uvicorn.Server):
    """A server of uvicorn that leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no handler of a signal."""
        yield
