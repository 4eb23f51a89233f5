"""Who may read and write the nodes of a job: whoever knows its secret, and nobody else.

ZooKeeper's digest scheme: a session names an identity, ``user:password``; an ACL on each node
names the identities that may do something to it. An identity here belongs to one job, so a session
may have several, and what one job's secret opens is closed to another's.

``exists`` is not covered by any ACL in ZooKeeper: a stranger can find out that a node is there,
how long its value is and when it was changed, if he guesses its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Permissions, make_acl, make_digest_acl

from edl.keys import derived

OPEN = OPEN_ACL_UNSAFE
SHARED = [
    # No WRITE and no ADMIN: nobody can shut all others out by changing this ACL.
    make_acl("world", "anyone", read=True, create=True, delete=True)
]
"""Of the node above all jobs: anybody may list the jobs and add one. A job in it can only be
removed when it is empty, which only those who know its secret can bring about."""


@dataclass(frozen=True)
class Access:
    """What proves to ZooKeeper that a process belongs to ``job``."""

    job: str
    secret: str = field(repr=False)

    @cached_property
    def credential(self) -> str:
        """``user:password`` as kazoo wants it."""
        return f"{self.job}:{self._password}"

    @cached_property
    def acl(self) -> list[ACL]:
        """The ACL of all that the job creates: everything for us, nothing for others."""
        return [make_digest_acl(self.job, self._password, all=True)]

    def opens(self, acl: list[ACL]) -> bool:
        """Whether a node with ``acl`` was made with this secret."""
        mine = self.acl[0].id
        return any(one.id == mine and one.perms == Permissions.ALL for one in acl)

    @property
    def _password(self) -> str:
        return derived(self.secret, "zookeeper", self.job)
