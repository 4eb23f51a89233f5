"""A leader's clock: set by a time stamp of ZooKeeper, and then on by the monotonic clock."""

from __future__ import annotations

import time

import pytest

from edl.zookeeper.session import ZooKeeperClock


def test_it_goes_on_from_zookeepers_time_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = [70.0]
    clock = ZooKeeperClock(stamp_s=1000.0, asked_s=69.5, monotonic=lambda: monotonic[0])
    assert clock.now_s() == 1000.5, "the write took half a second, so this is not behind"
    monkeypatch.setattr(time, "time", lambda: 5.0)
    monotonic[0] += 3600.0
    assert clock.now_s() == 4600.5, "a step of the host's clock changes nothing"
