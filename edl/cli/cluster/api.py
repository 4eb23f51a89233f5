"""`edl cluster api` serves a cluster over HTTP, and `edl cluster token` makes tokens for that."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from edl.api.listening import check_packages, listen_address
from edl.cli.common import ClusterOption, ZooKeeperOption, line_writer
from edl.cluster.client.connection import connected_cluster
from edl.errors import UsageError
from edl.http.signing import new_token
from edl.text import seconds

TlsCertificateOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="A certificate with its chain, in PEM: the HTTP API is served over TLS.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option(
        "--tls-key", metavar="FILE", help="The key of that certificate.", show_default=False
    ),
]


def serve_api(
    listen: Annotated[
        str,
        typer.Argument(
            metavar="[ADDRESS:]PORT",
            help="Where to listen; without ADDRESS only this machine reaches it.",
            show_default=False,
        ),
    ],
    tls_cert: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Serve the verbs of a cluster over HTTP, until SIGTERM or Ctrl-C.

    Any number may run. `edl cluster start --api` runs one beside a controller.
    """
    api_command(listen, tls_cert, tls_key)
    from edl.api.server import (
        TlsFiles,  # what it imports is an extra
        run_server,
    )

    tls = TlsFiles(tls_cert, tls_key) if tls_cert and tls_key else None
    with connected_cluster(cluster, zookeeper) as store:
        store.nodes.check_administrator("serve the HTTP API")
        hosts, access = store.nodes.session.hosts, store.nodes.session.access
        assert access is not None
    run_server(hosts, access, listen_address(listen), tls, line_writer(with_time=True))


def api_command(listen: str | None, tls_cert: str | None, tls_key: str | None) -> list[str]:
    """Return the words of the command that serves the API, without the cluster; check them."""
    if listen is None:
        if tls_cert or tls_key:
            raise UsageError("--tls-cert and --tls-key need --api, which says where to listen")
        return []
    if (tls_cert is None) != (tls_key is None):
        missing = "--tls-key" if tls_key is None else "--tls-cert"
        raise UsageError(f"{missing} is missing: TLS needs a certificate and its key")
    where = listen_address(listen)
    check_packages()
    words = ["cluster", "api", str(where)]
    for option, path in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        words += [option, path] if path is not None else []
    return words


def token(
    valid: Annotated[
        str, typer.Option("--valid", metavar="DURATION", help="How long it is accepted: 12h, 30d.")
    ] = "30d",
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Print a bearer token for the HTTP API, which accepts it over TLS only.

    Whoever has it may do with the cluster what you may, until it expires; it cannot be taken back.
    """
    valid_s = seconds(valid)
    if not valid_s:
        raise UsageError(f"--valid is {valid!r}; write a duration, such as 12h or 30d")
    with connected_cluster(cluster, zookeeper) as store:
        store.nodes.check_administrator("make tokens for the HTTP API")
        access = store.nodes.session.access
        assert access is not None
    typer.echo(new_token(access.secret, access.job, time.time() + valid_s))
