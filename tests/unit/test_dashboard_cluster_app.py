"""The server of a cluster's page: what it reads, whom it answers, which jobs it opens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_calls import get
from shown_cluster import NAME, NOW, SECRET, ShownCluster, event, stored
from shown_job import ShownStore

from edl.cluster.client.history_file import HistoryFile
from edl.cluster.lifecycle import ClusterEventKind
from edl.dashboard.answers import HEADERS, SecureApplication, view_token
from edl.dashboard.app import cluster_app
from edl.dashboard.cluster_watcher import MAX_PAGES, ClusterJobPages, ClusterWatcher
from edl.errors import CoordinationError, UnknownJob, UsageError

pytestmark = pytest.mark.long  # Starlette takes 0.3 s to import

TOKEN = view_token(SECRET, NAME)


@pytest.fixture
def store() -> ShownCluster:
    return ShownCluster()


@pytest.fixture
def watcher(store: ShownCluster, tmp_path: Path) -> ClusterWatcher:
    found: Any = store
    history = HistoryFile(tmp_path / "history.sqlite")
    one = ClusterWatcher(found, history, clock=lambda: NOW + 10.0 * store.reads)
    one.turn()
    return one


class Opened:
    """Opens invented jobs, and remembers which are open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.error: Exception | None = None

    @contextmanager
    def __call__(self, job: str) -> Iterator[Any]:
        if self.error is not None:
            raise self.error
        self.open.append(job)
        yield ShownStore()
        self.open.remove(job)


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def app(watcher: ClusterWatcher, opened: Opened) -> Iterator[SecureApplication]:
    pages = ClusterJobPages(opened)
    yield cluster_app(watcher, pages.watcher, TOKEN)
    pages.close()
    assert opened.open == []


def asked(app: SecureApplication, path: str) -> Any:
    status, _, body = get(app, path, TOKEN)
    assert status == 200, body
    return json.loads(body)


def sections(app: SecureApplication) -> dict[str, Any]:
    found: dict[str, Any] = asked(app, "/api/page")["sections"]
    return found


PATHS = (
    *("/api/page", "/api/stream", "/api/jobs", "/api/jobs/run", "/api/chart", "/api/events"),
    *("/jobs/run/api/page", "/jobs/run/api/stream", "/jobs/run/api/events"),
)


def test_nothing_is_shown_without_the_token(app: SecureApplication, opened: Opened) -> None:
    for path in PATHS:
        for token in (None, "", "x" * 64, TOKEN[:-1]):
            status, headers, body = get(app, path, token)
            assert (status, b"train.py" in body) == (401, False), path
            assert headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    assert opened.open == [], "no job was opened for strangers"


def test_the_files_of_both_pages_are_served_and_say_nothing(app: SecureApplication) -> None:
    for path, script in (("/", b"/static/cluster.mjs"), ("/jobs/run/", b"/static/main.mjs")):
        status, headers, body = get(app, path, None)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert script in body
        assert b"lab" not in body


def test_the_page_has_the_header_and_the_hosts(app: SecureApplication) -> None:
    found = sections(app)
    assert found["header"]["words"] == "2 of 4 slots in use"
    assert found["header"]["jobs"] == {"queued": 1, "running": 1}
    assert [one["host"] for one in found["hosts"]["rows"]] == ["a"]
    assert found["hosts"]["rows"][0]["jobs"] == {"run": 2}
    assert (found["notice"], found["history"]["problem"]) == (None, "")


def test_jobs_are_listed_with_the_leaders_reason(app: SecureApplication) -> None:
    found = asked(app, "/api/jobs?states=queued")
    assert [one["name"] for one in found["jobs"]] == ["wait"]
    assert found["jobs"][0]["reason"] == "place 1 of 1 in the queue: no slot is free"
    assert asked(app, "/api/jobs?limit=1")["total"] == 2
    assert asked(app, "/api/jobs?limit=x&text=nothing") == {"jobs": [], "total": 0}
    facts = asked(app, "/api/jobs/run")
    assert (facts["hosts"], facts["command"]) == ({"a": 2}, ["python", "train.py"])
    assert "env" not in facts, "it may hold secrets"
    assert get(app, "/api/jobs/none", TOKEN)[0] == 404


def test_the_chart_is_made_from_the_events(
    app: SecureApplication, watcher: ClusterWatcher, store: ShownCluster
) -> None:
    chart = asked(app, "/api/chart?period=900")
    assert chart["from_s"] == NOW - 50.0, "not 900 s ago, when nothing was there"
    [row] = chart["rows"]
    assert [(box["job"], box["lanes"], box["to_s"]) for box in row["boxes"]] == [("run", 2, None)]
    version = sections(app)["history"]["version"]
    store.logged.append(
        event(3, "run", kind=ClusterEventKind.SLOTS, reason="slots", slots={"a": 1})
    )
    watcher.turn()
    assert sections(app)["history"]["version"] == version + 1
    [row] = asked(app, "/api/chart?period=900")["rows"]
    assert [box["lanes"] for box in row["boxes"]] == [2, 1]
    assert asked(app, "/api/chart?period=900&job=wait")["jobs"] == 0
    assert asked(app, "/api/chart?period=900&host=none")["rows"] == []


def test_an_event_that_cannot_be_read_is_left_out(
    app: SecureApplication, watcher: ClusterWatcher, store: ShownCluster
) -> None:
    store.logged += [(3, None), event(4, "late")]
    watcher.turn()
    found = sections(app)
    assert found["events"] == {"last": 4, "counts": {"plain": 1, "user": 3}, "unreadable": 1}
    assert (found["notice"], found["history"]["problem"]) == (None, "")
    watcher.turn()
    assert sections(app)["events"]["unreadable"] == 1


def test_charts_and_pages_do_not_read_more_for_more_browsers(
    app: SecureApplication, store: ShownCluster
) -> None:
    before = store.reads
    for _ in range(20):
        for path in ("/api/page", "/api/jobs", "/api/chart", "/api/events"):
            asked(app, path)
    assert store.reads == before


def test_zookeeper_goes_and_comes_back(
    app: SecureApplication, watcher: ClusterWatcher, store: ShownCluster
) -> None:
    store.error = CoordinationError("no connection to ZooKeeper")
    for _ in range(2):
        watcher.turn()
    found = sections(app)
    assert found["header"]["words"] == "2 of 4 slots in use"
    assert found["notice"]["text"].startswith(
        "The cluster could not be read for 10 seconds: no connection to ZooKeeper. The page"
    )
    assert found["notice"]["stale"]
    assert asked(app, "/api/jobs")["total"] == 2, "what was known is shown"
    store.error = None
    watcher.turn()
    assert sections(app)["notice"] is None


def test_without_a_controller_it_says_since_when(
    app: SecureApplication, watcher: ClusterWatcher, store: ShownCluster
) -> None:
    assert sections(app)["header"]["leaderless_s"] == 0.0
    store.controllers = []
    watcher.turn()
    since_s = sections(app)["header"]["leaderless_s"]
    watcher.turn()
    header = sections(app)["header"]
    assert (header["words"], header["tone"]) == ("no controller leads", "bad")
    assert header["leaderless_s"] == since_s > NOW
    assert header["reasons_s"] == store.said.at_s
    store.controllers = ["two"]
    watcher.turn()
    assert sections(app)["header"]["leaderless_s"] == 0.0


def test_a_history_that_cannot_be_written_is_only_said(
    store: ShownCluster, tmp_path: Path, opened: Opened
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    found: Any = store  # a directory of another user does the same
    one = ClusterWatcher(found, HistoryFile(blocked / "history.sqlite"))
    one.turn()
    app = cluster_app(one, ClusterJobPages(opened).watcher, TOKEN)
    assert (
        "cannot be kept: File exists; let this user write" in (sections(app)["history"]["problem"])
    )
    assert sections(app)["header"]["words"] == "2 of 4 slots in use"
    assert get(app, "/api/chart", TOKEN)[0] == 400


def test_the_page_of_a_job_is_opened_once(app: SecureApplication, opened: Opened) -> None:
    for _ in range(3):
        assert asked(app, "/jobs/run/api/page")["sections"]["header"]["job"] == "digits"
    assert asked(app, "/jobs/run/api/events?limit=1")["events"]
    assert opened.open == ["run"]
    opened.error = UnknownJob("none", ("run",))
    status, _, body = get(app, "/jobs/none/api/page", TOKEN)
    assert (status, "none" in json.loads(body)["message"]) == (404, True)


def test_pages_of_jobs_are_closed_when_nobody_looks_and_for_others(opened: Opened) -> None:
    now = [0.0]
    pages = ClusterJobPages(opened, clock=lambda: now[0])

    async def look(*jobs: str) -> None:
        for job in jobs:
            await pages.watcher(job)

    names = [f"j{number}" for number in range(MAX_PAGES)]
    asyncio.run(look(*names))
    with pytest.raises(UsageError, match="shows 16 jobs at a time"):
        asyncio.run(look("more"))
    now[0] = 10.0
    asyncio.run(look(*names[1:], "more"))
    assert sorted(opened.open) == sorted([*names[1:], "more"])
    now[0] = 65.0
    watcher = asyncio.run(pages.watcher("more"))
    now[0] = 100.0
    assert watcher.page_in_use() is watcher.page
    now[0] = 120.0
    asyncio.run(pages.close_idle())
    assert opened.open == ["more"]
    pages.close()
    assert opened.open == []


def test_of_a_thousand_jobs_a_bounded_number_is_sent(
    app: SecureApplication, watcher: ClusterWatcher, store: ShownCluster
) -> None:
    store.listed = [stored(f"job-{number}", number) for number in range(1000)]
    watcher.turn()
    assert len(get(app, "/api/page", TOKEN)[2]) < 3000
    found = asked(app, "/api/jobs?limit=100000")
    assert (len(found["jobs"]), found["total"]) == (500, 1000)
