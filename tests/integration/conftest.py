"""A session in the test's ZooKeeper, its end by force, and waiting."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import forked
import pytest
from kazoo.client import KazooClient
from known import DIGITS

from edl.testing.job import Job
from edl.zookeeper.session import Session

WAIT_S = 60.0

EDL_S = 60.0

_try_edl = Job.try_edl


def _try_forked(job: Job, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Stand in for :meth:`Job.try_edl`: fork the verb, if it is to run in no other network."""
    words, where = (verb, job.name, *arguments), (job.directory, job.environment)
    done = None if job.there else forked.run_to_end(words, *where, EDL_S)
    return done or _try_edl(job, verb, *arguments)


Job.start_process = staticmethod(forked.start)
Job.try_edl = _try_forked  # type: ignore[method-assign]


@pytest.fixture
def session(zk_hosts: str) -> Iterator[Session]:
    """Start a session in the chroot of this test, which knows the secret of the job `digits`."""
    with Session(zk_hosts, session_timeout_s=2.0, access=DIGITS) as one:
        yield one


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(condition, timeout_s)``: poll, and fail when the deadline passes."""

    def wait(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen within {timeout_s:g} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def expire() -> Callable[[Session], None]:
    """``expire(session)``: ZooKeeper ends that session, as if it had been silent too long."""

    def end(session: Session) -> None:
        twin = KazooClient(session.hosts, timeout=5.0, client_id=session.client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    return end
