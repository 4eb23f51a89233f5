"""Tell Lightning rank and size of this worker: :class:`ElasticEnvironment`."""

from __future__ import annotations

import logging

from lightning.fabric.plugins import ClusterEnvironment

import edl.torch as edl

logger = logging.getLogger(__name__)


class ElasticEnvironment(ClusterEnvironment):
    """The cluster environment of a worker: its answers follow the job's ring.

    Lightning asks it anew each time, so the answers are those of the present ring. The launcher has
    started the process, and edl connects it: there is no main process, and Lightning starts none.
    """

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher of edl starts all processes."""
        return True

    @property
    def main_address(self) -> str:
        """An address that nobody connects to; Lightning requires one."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """A port that nobody connects to; Lightning requires one."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Return False: the environment is made by :class:`~edl.lightning.ElasticStrategy` only."""
        return False

    def world_size(self) -> int:
        """Return the number of workers in the ring."""
        return edl.size()

    def set_world_size(self, size: int) -> None:
        """Ignore ``size``, because the ring decides it."""

    def global_rank(self) -> int:
        """Return this worker's rank in the ring; never 0 while the worker warms up."""
        return edl.rank()

    def set_global_rank(self, rank: int) -> None:
        """Ignore ``rank``, because the ring decides it."""

    def local_rank(self) -> int:
        """Return this worker's slot on its host, which never changes."""
        return edl.local_rank()

    def node_rank(self) -> int:
        """Return the index of this worker's host among the hosts of the ring."""
        return edl.cross_rank()
