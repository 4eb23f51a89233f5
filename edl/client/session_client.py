"""Keep a client's ZooKeeper session open for all calls in a ``with`` block.

:class:`SessionClient` does it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import PathLike, fspath
from typing import Generic, Self, TypeVar

from edl import config

Store = TypeVar("Store")  # the records that a client reads and writes, in an open session


class SessionClient(ABC, Generic[Store]):
    """A client that opens a ZooKeeper session for each call, or one for a whole ``with`` block.

    Subclasses say in :meth:`_connect` what is opened. A client must not be shared between threads.

    Args:
        name: the name of the job or the cluster; None to let the subclass choose one.
        zookeeper: the ZooKeeper servers, "host:port,host:port"; None for the configured ones.
        secret: the secret of the job or the cluster; None for the one in ``secret_file``.
        secret_file: a file, or a pipe, with the secret; None for the configured one.
    """

    def __init__(
        self,
        name: str | None = None,
        zookeeper: str | None = None,
        *,
        secret: str | None = None,
        secret_file: str | PathLike[str] | None = None,
    ) -> None:
        self._name = name
        self._zookeeper = zookeeper
        self._secret = secret
        self._secret_file = None if secret_file is None else fspath(secret_file)
        self._open = ExitStack()
        self._kept: Store | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._open.pop_all())  # what is kept already
            self._kept = stack.enter_context(self._connect())
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session that a ``with`` block, or `submit`, keeps open; without one do nothing.

        Later calls open a session of their own. The job or the cluster goes on.
        """
        self._kept = None
        self._open.close()

    def _keep(self, resources: ExitStack) -> None:
        self._open = resources

    @abstractmethod
    def _connect(self) -> AbstractContextManager[Store]:
        """Return a context manager that provides the records in a new ZooKeeper session."""

    @contextmanager
    def _kept_or(self, opened: AbstractContextManager[Store]) -> Iterator[Store]:
        """While entered, provide the records of the job or cluster, in one of two sessions."""
        if self._kept is not None:
            yield self._kept
            return
        with opened as store:
            yield store

    def _given_secret(self) -> str | None:
        """Return the secret that this client was given, read from its file if it was given one."""
        if self._secret_file is None:
            return self._secret
        return config.load(secret=self._secret, secret_file=self._secret_file).secret
