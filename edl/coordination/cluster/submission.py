"""Submit jobs to a cluster with :func:`submit_job`; a submission is one transaction with a key.

The key makes a submission safe to repeat: a client that got no answer, or a script that runs twice,
submits again with the same key and gets the same job. The key is known as long as the job's records
are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import NodeExistsError

from edl.coordination.cluster.store import ClusterStore
from edl.coordination.cluster.tenants import JobOwner
from edl.coordination.nodes import ATTEMPTS, content
from edl.coordination.reads import exists, get
from edl.coordination.secrets import new_secret
from edl.coordination.session import Refused
from edl.coordination.wire import decode, encode
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.job_life import JobLife, LifeState
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.manifest_file import checked_manifest
from edl.core.cluster.queue_shares import unknown_queue
from edl.core.cluster.records import Wanted
from edl.core.cluster.tenant_names import SEPARATOR, is_tenant_name
from edl.errors import CoordinationError, UsageError

MOST_JOBS = 10_000  # in one cluster, the ended ones included; ZooKeeper has all in memory
SMALL_BYTES = 4096  # of a manifest, as it is stored, that is taken in any case; most have 1,000
SHARED_BYTES = 1 << 24  # of a manifest, divided by the number of jobs: at most 110 MB for all


@dataclass(frozen=True)
class _Ended:
    """An ended job whose name a new job takes."""

    version: int  # of its node `life`
    # the path of the node of its key; empty: there is none any more
    key: str


def submit_job(
    store: ClusterStore,
    manifest: JobManifest,
    key: str | None = None,
    owner: JobOwner | None = None,
) -> str:
    """Submit a job to a cluster, unless that was done with the same key, and return its name."""
    if key is not None and not key.strip():
        raise UsageError("the key is empty; choose a text that no other submission has")
    store.nodes.check_session()
    manifest = checked_manifest(manifest)
    submission = _Submission(store, manifest, key if key is not None else uuid.uuid4().hex, owner)
    answer_lost = False
    for _ in range(ATTEMPTS):
        if submission.is_known():
            return manifest.name
        try:
            ended = submission.ended_one()
            submission.check_secrets()
            submission.check_queue()
            submission.check_owner()
            submission.write(ended)
        except Refused:
            continue  # another process has submitted or removed a job of that name: look again
        except CoordinationError:
            if answer_lost:
                raise
            answer_lost = True  # it may have been written: the key tells
            continue
        return manifest.name
    raise store.nodes.changed_too_often(store.paths.job(manifest.name))


class _Submission:
    """One submission of a job, which `submit_job` attempts until it has succeeded."""

    def __init__(
        self, store: ClusterStore, manifest: JobManifest, key: str, owner: JobOwner | None
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._name = manifest.name
        self._path = store.paths.job(manifest.name)
        self._key = store.paths.key(key)
        self._owner = owner
        self._queue = ""  # the path of its node, in a cluster that has queues

    def is_known(self) -> bool:
        """Return whether the job was submitted with this key, and its records still exist."""
        nodes, p = self._store.nodes, self._store.paths
        answer = nodes.read(get(self._key))[0]
        if answer is None:
            return False
        name = str(decode(self._key, answer[0])["job"])
        manifest = nodes.read(get(p.manifest(name)))[0]
        if manifest is None:
            return False  # it was removed meanwhile, and its key with it
        before = JobManifest.from_json(decode(p.manifest(name), manifest[0]))
        if before != self._manifest:
            raise UsageError(
                f"job {name} was submitted with the same key and another manifest; choose another "
                "key for another submission"
            )
        return True

    def ended_one(self) -> _Ended | None:
        """Return the ended job of the same name, which is replaced; None without a job."""
        nodes, p = self._store.nodes, self._store.paths
        jobs, old, life = nodes.read(exists(p.jobs), get(self._path), get(p.life(self._name)))
        if jobs is None:
            raise nodes.unknown()
        self._check_size(jobs.numChildren)
        if old is None or life is None:
            if jobs.numChildren >= MOST_JOBS:
                raise UsageError(
                    f"{nodes.what} has {jobs.numChildren} jobs, and may have {MOST_JOBS}; wait "
                    "until some have ended, or remove some with `edl delete`"
                )
            return None
        key = f"{p.keys}/{decode(self._path, old[0]).get('key', '')}"
        if key == self._key:  # another process has submitted it since
            raise Refused(0, NodeExistsError(key))
        state = JobLife.from_json(content(p.life(self._name), life)).state
        if state is not LifeState.ENDED:
            raise UsageError(
                f"{nodes.what} has a job named {self._name!r} already, which is {state}; choose "
                f"another name, or remove it with `edl delete {self._name}`"
            )
        return _Ended(life[1].version, key if nodes.read(exists(key))[0] else "")

    def check_secrets(self) -> None:
        """Raise a UsageError if the cluster has not got a secret for which the manifest asks."""
        if not self._manifest.secrets:
            return
        secrets = self._store.secrets
        known = secrets.names()
        for name in self._manifest.secrets:
            if name not in known:
                asks = f", for which job {self._name} asks"
                raise UsageError(secrets.unknown(name, known, asks))

    def check_queue(self) -> None:
        """Raise a UsageError if the cluster has queues, and none that the manifest names."""
        queues, name = self._store.queues.records(), self._manifest.queue
        self._queue = self._store.paths.queue(name) if queues else ""
        if queues and name not in queues:
            asks = f", which job {self._name} names"
            raise UsageError(unknown_queue(self._store.nodes.what, name, queues, asks))

    def check_owner(self) -> None:
        """Raise a UsageError if the job has the name of a tenant's, and is none."""
        tenant, dot, _ = self._name.partition(SEPARATOR)
        if self._owner is not None or not dot or not is_tenant_name(tenant):
            return
        if self._store.nodes.read(exists(self._store.paths.tenant(tenant)))[0] is not None:
            raise UsageError(
                f"a job named {self._name!r} belongs to tenant {tenant}; submit it with the secret "
                "of the tenant, or choose another name"
            )

    def _check_size(self, jobs: int) -> None:
        """Raise a UsageError if the manifest is too large for a cluster that has so many `jobs`."""
        # So all manifests together leave room in the memory of ZooKeeper.
        size = len(encode(self._manifest.to_json()))
        most = max(SMALL_BYTES, SHARED_BYTES // (jobs + 1))
        if size > most:
            raise UsageError(
                f"the manifest of job {self._name} takes {size} bytes, and {self._store.nodes.what}"
                f", which has {jobs} jobs, takes at most {most}; shorten it, or wait until some "
                "have ended"
            )

    def write(self, ended: _Ended | None) -> None:
        """Write the job and an event in one transaction."""
        what = f"submit job {self._name}"
        self._store.nodes.transact(what, partial(self._build, ended=ended))

    def _build(self, transaction: TransactionRequest, ended: _Ended | None) -> None:
        """Add to `transaction` the writes of the key, the job's nodes and an event."""
        p, name = self._store.paths, self._name
        about = encode({"key": self._key.rpartition("/")[2]})
        contents: Sequence[tuple[str, Any]] = (
            (p.manifest(name), self._manifest.to_json()),
            (p.wanted(name), Wanted(priority=self._manifest.priority).to_json()),
        )
        if self._queue:
            transaction.check(self._queue, -1)  # nobody has deleted it meanwhile
        transaction.create(self._key, encode({"job": name}))
        owner = self._owner
        acl = None if owner is None else owner.acl
        if ended is None:
            transaction.create(self._path, about, acl=acl)
            if owner is not None:
                transaction.create(p.secret(name), encode({"secret": new_secret()}), acl=acl)
                transaction.create(p.tenant_job(owner.tenant, name), b"", acl=acl)
        else:
            transaction.delete(p.life(name), ended.version)
            transaction.delete(p.wanted(name))
            transaction.delete(p.manifest(name))
            transaction.set_data(self._path, about)
            if ended.key:
                transaction.delete(ended.key)
        for path, values in contents:
            transaction.create(path, encode(values), acl=acl)
        transaction.create(p.life(name), b"", acl=acl)
        again = " again" if ended else ""
        reason = f"job {name} was submitted{again}, for {self._manifest.allowed_sizes}"
        event = self._store.events.new(ClusterEventKind.SUBMITTED, reason, job=name)
        self._store.events.append_in(transaction, event)
