"""Define who may read and write the nodes of a job or cluster: a session that knows its secret.

This uses ZooKeeper's digest scheme: a session proves an identity, ``user:password``, and an ACL on
each node names the identities that may read or change the node. An identity here (:class:`Access`)
belongs to one job or one cluster, so a session may have several, and the secret of one job does not
open another job. :meth:`edl.coordination.session.Session.identify` proves identities.

No ACL covers ZooKeeper's ``exists``: a session that guesses the name of a node can find out that
the node exists, how long its value is and when it was changed.
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
    """The ZooKeeper identity that follows from the name and the secret of a job or cluster."""

    job: str  # its name, which is also the user name of the identity
    secret: str = field(repr=False)  # its password is derived from this

    @cached_property
    def credential(self) -> str:
        """The text `user:password` with which kazoo proves the identity; the user is `job`."""
        return f"{self.job}:{self._password}"

    @cached_property
    def acl(self) -> list[ACL]:
        """The ACL for every node of the job: all rights for this identity, none for others."""
        return [make_digest_acl(self.job, self._password, all=True)]

    def opens(self, acl: list[ACL]) -> bool:
        """Return whether this secret made a node: its ACL gives this identity all rights."""
        mine = self.acl[0].id
        return any(one.id == mine and one.perms == Permissions.ALL for one in acl)

    @property
    def _password(self) -> str:
        return derived(self.secret, "zookeeper", self.job)
