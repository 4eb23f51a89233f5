"""Look at something in ZooKeeper again and again, as `--follow` does (:func:`followed`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import typer

from edl.cli.common import FOLLOW_S, trouble_words
from edl.client.waiting import ClientLimits
from edl.cluster.client.waiting import looks
from edl.errors import CoordinationError
from edl.zookeeper.session import Session

T = TypeVar("T")


def followed(look: Callable[[], T], session: Session) -> Iterator[T]:
    """Yield what `look` returns, twice a second, until the caller stops."""
    is_said = False

    def tried() -> T:
        nonlocal is_said
        try:
            found = look()
        except CoordinationError as error:
            if not is_said:
                trouble = trouble_words(session.connected, error)
                typer.echo(f"edl: {trouble}; this goes on when it answers", err=True)
            is_said = True
            raise
        is_said = False
        return found

    return looks(tried, None, ClientLimits(poll_s=FOLLOW_S))
