"""A worker whose script has failed is in nobody's way while its checkpoint is being written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from known import DIGITS
from made import make_job

from edl.config import Config
from edl.job.daemon import Daemon
from edl.ring.gloo import gloo_ring
from edl.worker.shared_state import SharedState
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration
HERE = "127.0.0.1"


def test_who_withdraws_is_no_member_but_what_it_saves_is_made_known(
    session: Session, zk_hosts: str, wait_until: Callable[..., None]
) -> None:
    store = JobStore(session, "digits")
    store.create(make_job(np=1, command=("x",)), {"alpha": 1})
    config = replace(Config(), job="digits", zookeeper=zk_hosts, secret=DIGITS.secret, address=HERE)
    with closing(Daemon(config, SharedState(), gloo_ring(None, HERE))) as daemon:
        daemon.start()
        daemon.campaign()
        wait_until(lambda: store.snapshot().leader is not None)
        daemon.resign()
        wait_until(lambda: not store.snapshot().members)
        daemon.put_saved("checkpoints", 7)
        assert daemon.flush(15.0)
        now = store.snapshot()
        assert (now.job.checkpoint, now.job.saved_step, now.members) == ("checkpoints", 7, ())
        assert not session.client.get_children(store.paths.election), "others lead"
