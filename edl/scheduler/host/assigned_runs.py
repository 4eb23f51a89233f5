"""Read what an agent of an assigned run needs, and say why it cannot be started yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from edl.coordination.access import Access
from edl.coordination.cluster.store import ClusterStore
from edl.coordination.lifecycle import current_run
from edl.coordination.paths import JobPaths
from edl.coordination.reads import exists, ignore_changes
from edl.coordination.session import Session
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.tenant_names import SEPARATOR, tenant_of
from edl.errors import AccessDenied, CoordinationError, UnknownJob
from edl.scheduler.host.agents import StartOfRun
from edl.scheduler.host.job_users import NO_USERS, JobUsers
from edl.scheduler.host.path_probe import PathProbe

MOST_IDENTITIES = 500
"""The number of jobs whose identity a session proves before another session replaces it.

A session keeps all identities, sends them when it connects again, and ZooKeeper compares all of
them with each ACL."""
ASK_S = 5.0  # between two times that all is read of a run that is waited for
NOT_CREATED = "its run has not been created yet"
NOT_LOOKED = "it is not known yet whether this host has {}; its file system does not answer"


class AssignedRuns:
    """A reader of the manifests, secrets and runs of jobs that are assigned to a host."""

    def __init__(
        self,
        store: ClusterStore,
        connect: Callable[[], Session],
        paths: PathProbe,
        clock: Callable[[], float] = time.monotonic,
        users: JobUsers = NO_USERS,
    ) -> None:
        self._store = store
        self.paths = paths
        # called when a run has been created for which `start_of` had to wait; it must not block
        self.on_created: Callable[[], None] = ignore_changes
        self._connect = connect
        # Its own, because what a session creates is closed with the secret that it has proved last.
        self._session: Session | None = None
        self._clock = clock
        self._users = users
        # Jobs and their runs, watched in the session -> when all was read last.
        self._awaited: dict[tuple[str, str], float] = {}

    def start_of(self, job: str, run: str) -> StartOfRun | str:
        """Return what the agent of a run is started with, or a sentence why it cannot start now."""
        # An agent that came before its run was created would find that the run is over.
        if self._waits_for(job, run) and self._clock() - self._awaited[job, run] < ASK_S:
            return NOT_CREATED
        try:
            manifest = self._store.jobs.get(job).manifest
            secret = self._store.jobs.secret(job)
        except UnknownJob:
            return f"the cluster has no job {job}"
        except CoordinationError as error:
            if not self._store.nodes.session.connected:
                raise
            return f"its records cannot be read: {error}"  # they are of a newer edl, for example
        if why := self._closed(job):
            return why
        if secret is None:
            return NOT_CREATED
        secrets = self._lacks(manifest) or self._secrets_of(manifest)
        if isinstance(secrets, str):
            return secrets
        try:
            if self._current_run(job, secret) != run:
                self._awaited[job, run] = self._clock()
            if self._waits_for(job, run):
                return NOT_CREATED
        except AccessDenied:
            self._awaited.pop((job, run), None)
            return f"the name {job} is taken by a job that has another secret"
        return StartOfRun(run, manifest, secret, secrets)

    def keep_only(self, assigned: Collection[tuple[str, str]]) -> None:
        """Stop waiting for the creation of all runs but `assigned`."""
        # ZooKeeper keeps watches for as long as the session lives.
        if not self._awaited.keys() <= set(assigned):
            self.close()

    def _waits_for(self, job: str, run: str) -> bool:
        """Return whether a run that was not there when it was asked for is still not created."""
        if (job, run) not in self._awaited:
            return False
        session = self._session
        if session is None or not session.connected:
            self._awaited.clear()  # they are asked for in another session
            return False
        # Only this is asked: while a controller creates a thousand runs, hosts wait for most of
        # them.
        node = exists(f"{JobPaths(job).run}/{run}", self._created)
        if session.read_all("wait for a run", [node])[0] is None:
            return True
        del self._awaited[job, run]
        return False

    def _created(self) -> None:
        # on kazoo's connection thread
        self.on_created()

    def _closed(self, job: str) -> str:
        """Return why no job of a tenant runs here, as a sentence; empty: it may."""
        # The controller gives it no slots here, but one of an older edl does.
        if self._users.of_tenants or SEPARATOR not in job:
            return ""
        tenant = tenant_of(job, self._store.tenants.names())
        why = f"`edl host` names no user for jobs of tenant {tenant}; add --user {tenant}=USER"
        return why if tenant else ""

    def _lacks(self, manifest: JobManifest) -> str:
        """Return which path that `manifest` requires is not here, as a sentence; empty: none."""
        there = self.paths.answers(manifest.required_paths)
        for path, what in manifest.required_paths.items():
            if not there.get(path, False):
                return f"this host lacks {what}" if path in there else NOT_LOOKED.format(what)
        return ""

    def close(self) -> None:
        """End the session for the nodes of jobs; the next `start_of` opens another one."""
        session, self._session = self._session, None
        self._awaited.clear()
        if session is not None:
            session.close()

    def _secrets_of(self, manifest: JobManifest) -> Mapping[str, bytes] | str:
        """Return the secrets that `manifest` asks for, by name, or a sentence why it lacks one."""
        try:
            found = self._store.secrets.contents(manifest.secrets)
        except CoordinationError as error:
            if not self._store.nodes.session.connected:
                raise
            return str(error)  # it was sealed by a stranger
        missing = [name for name in manifest.secrets if name not in found]
        if missing:
            return f"the cluster has no secret {missing[0]}; `edl secret set {missing[0]}`"
        return found

    def _current_run(self, job: str, secret: str) -> str | None:
        """Return the token of the present run of a job; None if it has none."""
        session = self._session
        if session and not (session.connected and len(session.identities) < MOST_IDENTITIES):
            self.close()
        if self._session is None:
            self._session = self._connect()
        access = Access(job, secret)
        if access not in self._session.identities:
            self._session.identify(access)
        return current_run(self._session, JobPaths(job))
