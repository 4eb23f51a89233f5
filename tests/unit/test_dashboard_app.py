"""The server of the page: what it reads, whom it answers, what it sends."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from http_calls import get as called
from shown_job import (
    CREATED,
    NAME,
    SECRET,
    ShownStore,
    event,
    generation,
    snapshot,
    story,
    training,
)

from edl.dashboard.answers import HEADERS, view_token
from edl.dashboard.app import dashboard_app
from edl.dashboard.job_watcher import JobWatcher, PublishedPage, are_events_gone
from edl.dashboard.view.outage import ServerProbe, WorkerReports
from edl.errors import CoordinationError, UnknownJob
from edl.events import CheckpointFailedDetails
from edl.records import JobState
from edl.zookeeper.store import NUMBERS

pytestmark = pytest.mark.long  # Starlette takes 0.3 s to import

TOKEN = view_token(SECRET, NAME)


@pytest.fixture
def store() -> ShownStore:
    return ShownStore()


@pytest.fixture
def watcher(store: ShownStore) -> JobWatcher:
    found: Any = store
    one = JobWatcher(
        found,
        clock=lambda: CREATED + 600.0 + store.reads,
        steady_clock=lambda: store.reads,
        probe=lambda hosts: {hosts: ServerProbe.SILENT},
        ask=lambda now, run: WorkerReports(3, 2, now.status.step + 7) if run else WorkerReports(),
    )
    one.turn()
    return one


def get(
    app: Any, path: str, token: str | None = TOKEN, **more: Any
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the answer to a GET of ``path``, with the token."""
    return called(app, path, token, **more)


def sections_of(watcher: JobWatcher) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(watcher.page.patch())["sections"]
    return found


def test_the_job_is_shown_only_to_whoever_has_the_token(watcher: JobWatcher) -> None:
    app = dashboard_app(watcher, TOKEN)
    long = "9" * 5000  # more digits than `int` takes
    paths = ("/api/page", "/api/stream", "/api/events", "/api/generations/2")
    for path in (*paths, f"/api/generations/{long}", "/api/generations/x"):
        for token in (None, "", "x" * 64, TOKEN[:-1], "\xff"):
            status, _, body = get(app, path, token)
            assert (status, b"digits" in body) == (401, False)
    assert get(app, "/api/page")[0] == 200
    for number in (long, "x", "-1", "\u00b2"):
        assert get(app, f"/api/generations/{number}")[0] == 404


def test_all_answers_have_the_secure_headers(watcher: JobWatcher) -> None:
    app = dashboard_app(watcher, TOKEN)

    def is_secure(headers: dict[str, str]) -> bool:
        return all(headers.get(name.lower()) == value for name, value in HEADERS.items())

    for path, token in (("/", None), ("/none", None), ("/api/page", None), ("/api/page", TOKEN)):
        assert is_secure(get(app, path, token)[1]), path
    app.state.watcher_of = None  # a defect
    status, headers, body = get(app, "/api/page", error=TypeError)
    assert (status, is_secure(headers), b"Traceback" in body) == (500, True, False)


def test_the_files_say_nothing_of_the_job_and_load_nothing_from_elsewhere(
    watcher: JobWatcher,
) -> None:
    app = dashboard_app(watcher, TOKEN)
    status, headers, body = get(app, "/", None)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    assert headers["referrer-policy"] == "no-referrer"
    assert not re.search(rb"<script>|style=|onclick|https?://", body)
    for path in re.findall(rb'(?:src|href)="([^"]+)"', body):
        assert get(app, path.decode(), None)[0] == 200
    for name, file in app.state.files.items():
        if not name.startswith("vendor/"):
            urls = re.findall(rb"https?://[^\"]*", file.content)
            assert set(urls) <= {b"http://www.w3.org/2000/svg"}, name  # a name, not loaded
    for path in ("/static/../app.py", "/static/vendor/README.md", "/static/none", "/none"):
        assert get(app, path, None)[0] == 404
    assert (
        get(app, "/static/main.mjs", None, if_none_match=app.state.files["main.mjs"].tag)[0] == 304
    )


def test_a_browser_gets_what_has_changed(watcher: JobWatcher, store: ShownStore) -> None:
    app = dashboard_app(watcher, TOKEN)
    first = json.loads(get(app, "/api/page")[2])
    assert first["sections"]["header"]["job"] == "digits"
    where = f"/api/page?instance={first['instance']}&since={first['version']}"
    assert json.loads(get(app, where)[2])["sections"] == {}
    store.now = snapshot((0, 1))
    watcher.turn()
    changed = json.loads(get(app, where)[2])
    assert {"header", "workers"} <= set(changed["sections"])
    assert "ledger" not in changed["sections"]
    other = json.loads(get(app, f"/api/page?instance=other&since={first['version']}")[2])
    assert set(other["sections"]) >= set(first["sections"])


def test_reads_do_not_grow_with_browsers(watcher: JobWatcher, store: ShownStore) -> None:
    app, before = dashboard_app(watcher, TOKEN), store.reads
    for _ in range(50):
        get(app, "/api/page")
        get(app, "/api/events")
    assert store.reads == before


def test_events_and_switches(watcher: JobWatcher) -> None:
    app = dashboard_app(watcher, TOKEN)
    found = json.loads(get(app, "/api/events?tones=bad&text=killed&limit=5")[2])["events"]
    assert [one["kind"] for one in found] == ["worker_failed"]
    wrong = json.loads(get(app, "/api/events?limit=-3&before=x&tones=none")[2])["events"]
    assert wrong == []
    switch = json.loads(get(app, "/api/generations/3")[2])["switch"]
    assert (switch["size"], switch["workers"][0]["worker"]) == (2, "w0")
    assert json.loads(get(app, "/api/generations/99")[2]) == {"switch": None}


def test_all_kept_events_can_be_reached_page_by_page(store: ShownStore) -> None:
    found: Any = store
    store.log = [event(n, CheckpointFailedDetails(), 1, n) for n in range(2100)]
    one = JobWatcher(found, clock=lambda: CREATED + 3000.0)
    one.turn()
    app = dashboard_app(one, TOKEN)
    seen: list[int] = []
    while True:
        before = f"&before={seen[-1]}" if seen else ""
        page = json.loads(get(app, f"/api/events?limit=200{before}")[2])["events"]
        seen += [shown["number"] for shown in page]
        if len(page) < 200:
            break
    assert seen == list(range(2099, 99, -1))


def test_zookeeper_goes_and_comes_back(watcher: JobWatcher, store: ShownStore) -> None:
    app = dashboard_app(watcher, TOKEN)
    sections_before = sections_of(watcher)
    store.error = CoordinationError("no connection to ZooKeeper")
    watcher.turn()
    watcher.turn()
    shown = json.loads(get(app, "/api/page")[2])["sections"]
    assert shown["header"]["job"] == "digits"
    says = shown["notice"]["text"]
    assert says.startswith("ZooKeeper at 127.0.0.1:2181 has not answered for 2 s. The page asks")
    first, *others = shown["incidents"]
    assert "has not answered this page for 2 s:" in first["what"]
    assert shown["now_s"] - first["at_s"] == 2.0, "its age is counted from the present time"
    assert shown["read_s"] < shown["now_s"], "and not from the last reading"
    assert (first["kind"], first["until_s"], first["step"]) == ("zookeeper_away", None, 1000)
    assert first["why"].startswith("Nothing answered at 127.0.0.1:2181: the machine was down")
    assert (
        "2 of 3 workers say that step 1,007 is the newest complete one, 7 after the last"
        in first["since"]
    )
    assert others == sections_before["incidents"]
    *marks, mark = shown["timeline"]["marks"]
    assert (mark["kind"], mark["at_s"]) == ("zookeeper_away", first["at_s"])
    assert marks == sections_before["timeline"]["marks"]
    store.error = None
    watcher.turn()
    shown = json.loads(get(app, "/api/page")[2])["sections"]
    assert shown["notice"] is None
    assert shown["now_s"] == shown["read_s"]
    assert shown["incidents"] == others
    assert shown["timeline"]["marks"] == marks


def test_a_leader_that_stops_to_report_is_noticed_whatever_its_clock_says(
    watcher: JobWatcher, store: ShownStore
) -> None:
    ahead_s = CREATED + 5000.0  # by the leader's clock
    for at_s in (ahead_s, ahead_s + 1.0):
        store.now = snapshot(status=training(at_s))
        watcher.turn()
    for _ in range(15):
        watcher.turn()
    assert sections_of(watcher)["header"]["words"] == "training"
    watcher.turn()
    assert sections_of(watcher)["header"]["words"] == "the leader has not reported for 16 seconds"


def test_a_record_that_cannot_be_read_is_no_silence_of_zookeeper(
    watcher: JobWatcher, store: ShownStore
) -> None:
    store.error, store.connected = CoordinationError("this is not a Job: 'spec'"), True
    watcher.turn()
    watcher.turn()
    notice = sections_of(watcher)["notice"]
    assert notice["tone"] == "bad"
    assert notice["text"].startswith(
        "The job cannot be read: this is not a Job: 'spec'. The page shows what was known 2 s ago"
    )


def test_an_event_that_cannot_be_read_is_left_out(watcher: JobWatcher, store: ShownStore) -> None:
    known = len(store.log)
    store.log.append(None)
    watcher.turn()
    store.log.append(generation(700, 6, ("w0", "w1")))
    watcher.turn()
    shown = sections_of(watcher)
    assert (shown["events"]["unreadable"], shown["notice"]) == (1, None)
    assert shown["events"]["last"] == known + 1
    assert shown["timeline"]["bands"][-1]["last"] == 6


def test_a_log_that_was_cut_is_noticed_by_its_numbers(store: ShownStore) -> None:
    found: Any = store
    store.log, store.first = list(story()[9:]), 9  # from the crash on
    one = JobWatcher(found, clock=lambda: CREATED + 600.0)
    one.turn()
    shown = sections_of(one)
    assert (shown["header"]["is_cut"], shown["timeline"]["is_cut"]) == (True, True)
    assert shown["header"]["since_s"] == story()[9].time
    assert [band["cause"] for band in shown["timeline"]["bands"]][:2] == ["unknown", "crash"]
    store.log, store.first = [generation(700, 6, ("w0", "w1"), (), ("w3",))], 2000
    one.turn()  # more were written meanwhile than are kept
    assert [band["first"] for band in sections_of(one)["timeline"]["bands"]] == [5, 6]


def test_a_log_that_is_whole_is_no_cut_one(watcher: JobWatcher) -> None:
    assert not sections_of(watcher)["header"]["is_cut"]
    assert not are_events_gone(-1, 0)
    assert are_events_gone(-1, 1)
    assert not are_events_gone(15, 16)
    assert are_events_gone(15, 17)
    assert not are_events_gone(15, NUMBERS)  # it was written again
    assert are_events_gone(-1, NUMBERS)
    assert are_events_gone(15, NUMBERS + 1)


def test_the_page_stays_after_the_end_and_after_the_job(
    watcher: JobWatcher, store: ShownStore
) -> None:
    app = dashboard_app(watcher, TOKEN)
    store.now = snapshot(state=JobState.FINISHED)
    watcher.turn()
    store.error = UnknownJob("digits")
    watcher.turn()
    shown = json.loads(get(app, "/api/page")[2])["sections"]
    assert shown["header"]["words"] == "finished"
    assert "The page stays" in shown["notice"]["text"]


def test_what_a_page_shows_of_a_deleted_job_is_said_to_be_old(
    watcher: JobWatcher, store: ShownStore
) -> None:
    store.error = CoordinationError("no connection to ZooKeeper")
    watcher.turn()
    store.error = UnknownJob("digits")
    watcher.turn()
    shown = sections_of(watcher)
    assert (shown["header"]["words"], shown["notice"]["stale"]) == ("training", True)
    assert "zookeeper_away" not in {one["kind"] for one in shown["incidents"]}
    assert "zookeeper_away" not in {one["kind"] for one in shown["timeline"]["marks"]}
    store.error = CoordinationError("no connection to ZooKeeper")
    watcher.turn()  # an outage of its own, which begins now
    assert "has not answered for 1 s." in sections_of(watcher)["notice"]["text"]


def test_another_start_of_the_job_begins_anew(watcher: JobWatcher, store: ShownStore) -> None:
    before = watcher.page.instance
    job = store.now.job
    store.now, store.log = snapshot((0,)), []
    object.__setattr__(store.now, "job", type(job)(job.name, job.spec, created=CREATED + 900.0))
    watcher.turn()
    assert watcher.page.instance != before
    assert json.loads(watcher.page.patch())["sections"]["timeline"]["bands"] == []


def test_a_stream_sends_the_page_and_ends_with_the_server(
    watcher: JobWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = dashboard_app(watcher, TOKEN)

    def turned() -> PublishedPage:
        app.state.ends = True  # after the first message
        return page

    page = watcher.page
    monkeypatch.setattr(watcher, "page_in_use", turned)
    status, headers, body = get(app, "/api/stream")
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert body.startswith(b'data: {"instance":"')
    assert body.endswith(b"}\n\n")
    assert app.state.streams == 0
    app.state.streams = 64
    assert get(app, "/api/stream")[0] == 503
