"""What `edl-worker` says to the driver of horovodrun, also when that is slow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from edl.config import HorovodSlot
from edl.errors import RendezvousFailed
from edl.host.horovodrun.driver import ASKED, IDENTITY, Driver, DriverLimits

SLOT = HorovodSlot("10.0.0.1", 1, "a", 1, 1, 2, 2, "lo")
SOON = DriverLimits(poll_s=0.001, polls_per_s=10_000)
THE_JOB = {"job": "digits", "secret": "s", "zookeeper": "zk:2181"}
Store = dict[str, bytes]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the driver's store, which the test can make unresponsive.

    As many PUTs as "unanswered" says get no answer. "gone": no driver listens. "busy": GETs get
    none. "last": the driver ends with the next answer.
    """
    held: Store = {}

    def put(address: str, port: int, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        if (left := int(held.get("unanswered", b"0"))) > 0:
            held["unanswered"] = b"%d" % (left - 1)
            raise RendezvousFailed(0, "PUT from 10.0.0.1:1 failed: TimeoutError")
        if "gone" in held:
            raise ConnectionRefusedError
        held[path] = body
        return 200, b""

    def fetch(address: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
        if "gone" in held:
            raise ConnectionRefusedError
        if "busy" in held:
            raise TimeoutError
        if path.startswith("/rank_and_size/"):
            held["questions"] = held.get("questions", b"") + b"?"
            if "last" in held:
                held["gone"] = b"1"
            return 200, b"1,3,1,3,0,1"
        return (200, held[path]) if path in held else (404, b"")

    monkeypatch.setattr("edl.host.horovodrun.driver.http_put", put)
    monkeypatch.setattr("edl.host.horovodrun.driver.fetch", fetch)
    return held


def listen(driver: Driver, until: Callable[[], bool]) -> bool:
    driver._thread.start()
    deadline = time.monotonic() + 1.0
    while not (reached := until()) and time.monotonic() < deadline:
        time.sleep(0.001)
    driver.close()
    driver._thread.join(5.0)
    return reached


def test_the_identity_is_sent_until_the_driver_has_taken_it(store: Store) -> None:
    store["unanswered"] = b"3"
    driver = Driver(SLOT, SOON)
    driver.identify(THE_JOB)
    assert IDENTITY not in store
    assert listen(driver, lambda: IDENTITY in store)
    assert json.loads(store[IDENTITY]) == THE_JOB


def test_nobody_asks_before_the_others_can_find_the_job(store: Store) -> None:
    """The driver would wait for their questions."""
    store["unanswered"], store[ASKED] = b"1000000", b"1"
    driver = Driver(SLOT, SOON)
    driver.allow(True, driver.newest)
    driver.identify(THE_JOB)
    assert not listen(driver, lambda: "questions" in store)


def test_a_refusal_is_repeated(store: Store) -> None:
    store["unanswered"] = b"3"
    Driver(SLOT, SOON).refuse("ZooKeeper is away")
    assert json.loads(store[IDENTITY]) == {"refused": "ZooKeeper is away"}


def test_a_question_is_not_allowed_for_an_answer_that_is_not_the_newest(store: Store) -> None:
    """The removals that the newest one says must be carried out before."""
    driver = Driver(SLOT, SOON)
    earlier = driver.newest
    driver.allow(True, earlier)
    store[ASKED] = b"1"
    driver._wake = lambda: driver.allow(True, earlier)  # as if decided just before the answer
    assert not listen(driver, lambda: len(store.get("questions", b"")) > 1)
    assert store["questions"] == b"?"
    assert driver.newest.size == 3
    again = Driver(SLOT, SOON)
    again.allow(True, again.newest)
    again._wake = lambda: again.allow(True, again.newest)
    assert listen(again, lambda: len(store["questions"]) > 2)


def test_after_the_job_no_round_begins_and_one_that_has_begun_goes_on(store: Store) -> None:
    """All answers in, the driver would end who still saves or evaluates."""
    driver = Driver(SLOT, SOON)
    driver.allow(True, driver.newest)
    driver.begin_no_round()
    driver.ask()
    assert not listen(driver, lambda: ASKED in store)
    store[ASKED] = b"1"
    other = Driver(SLOT, SOON)
    other.allow(True, other.newest)
    other.begin_no_round()
    assert listen(other, lambda: "questions" in store)


@pytest.mark.parametrize("answered", [False, True])
def test_the_end_of_the_driver_is_seen_after_its_last_answer_too(
    answered: bool, store: Store
) -> None:
    """After an answer the identity has to be sent again, which nobody takes any more."""
    driver = Driver(SLOT, replace(SOON, gone_s=0.01))
    driver.identify(THE_JOB)
    if answered:
        store[ASKED] = store["last"] = b"1"
        driver.allow(True, driver.newest)
    else:
        store["gone"] = b"1"
    assert listen(driver, lambda: driver.gone)
    assert ("questions" in store) == answered


def test_one_refused_connection_and_time_outs_are_no_end(store: Store) -> None:
    """Such a driver is busy, or cut off from here."""
    driver = Driver(SLOT, replace(SOON, gone_s=0.0))
    store["gone"] = b"1"
    assert not driver.asked()
    assert driver.gone
    del store["gone"]
    store["busy"] = b"1"
    assert not driver.asked()
    assert not driver.gone
