"""`edl secret`: give secrets to a cluster, which jobs read by their names."""

from __future__ import annotations

import getpass
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from edl.cli.common import ClusterOption, JsonOption, ZooKeeperOption
from edl.cluster.client.client import Cluster
from edl.cluster.store import MOST_BYTES
from edl.errors import UsageError
from edl.text import counted, rounded, verb

app = typer.Typer(
    help="Secrets of a cluster, which its jobs read by their names.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the secret.", show_default=False)
]


@app.command("set")
def set_secret(
    name: NameArgument,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="Its content, unchanged. Default: standard input, without a newline at its end.",
            show_default=False,
        ),
    ] = None,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Give a secret to a cluster, or replace it. Never write its value on a command line.

    A job whose manifest has `secrets: [NAME]` reads it from the file NAME in the directory
    EDL_SECRETS_DIR. A new value counts for what starts after that.
    """
    content = _given(name) if file is None else _content_of(file)
    with Cluster(cluster, zookeeper) as client:
        client.secrets.set(name, content)
        typer.echo(f"secret {name} is set in cluster {client.name}")


@app.command("list")
def list_secrets(
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """List the secrets of a cluster, without their values."""
    with Cluster(cluster, zookeeper) as client:
        found, where = client.secrets.list(), client.name
    if as_json:
        for one in found:
            typer.echo(json.dumps({"name": one.name, "set_s": one.set_s, "by": one.by}))
        return
    if not found:
        typer.echo(f"cluster {where} has no secrets")
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        ago = rounded(time.time() - one.set_s)
        typer.echo(f"{one.name.ljust(width)}  set {ago} ago by {one.by}")


@app.command("delete")
def delete_secret(
    name: NameArgument,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Remove a secret from a cluster. A job that asks for it waits when it is to start."""
    with Cluster(cluster, zookeeper) as client:
        asking = client.secrets.delete(name)
        typer.echo(f"secret {name} is deleted from cluster {client.name}")
    if asking:
        jobs = counted(len(asking), "job")
        typer.echo(f"{jobs} {verb(len(asking), 'asks', 'ask')} for it: {', '.join(asking)}")


def _given(name: str) -> bytes:
    """Return the value of the secret `name` from standard input, without a newline at its end."""
    if sys.stdin is None:  # the parent has closed it
        raise UsageError("standard input is closed; give the value by --file")
    if sys.stdin.isatty():
        return getpass.getpass(f"Value of the secret {name}: ").encode()
    content = sys.stdin.buffer.read(MOST_BYTES + 2)
    return content.removesuffix(b"\n")


def _content_of(path: Path) -> bytes:
    """Return the content of a file; raise a UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
