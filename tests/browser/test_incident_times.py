"""The ages and times in a job's page in headless Chromium, of an invented job, as a report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pages import opened
from playwright.sync_api import Browser, Page, expect
from shown_job import CREATED, ShownStore

from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.report import report_page
from edl.dashboard.view.outage import ServerProbe, WorkerReports
from edl.errors import CoordinationError

pytestmark = [pytest.mark.integration, pytest.mark.long]
AT_S = "(at) => new Date(1000 * at).toLocaleTimeString('en-GB')"


def page_of_an_outage(browser: Browser, directory: Path, lasted_s: float) -> Page:
    store: Any = ShownStore()
    now = [CREATED + 600.0]
    watcher = JobWatcher(
        store,
        clock=lambda: now[0],
        ask=lambda snapshot, run: WorkerReports(3, 3, snapshot.status.step + 7),
        probe=lambda hosts: {hosts: ServerProbe.REFUSED},
    )
    watcher.turn()
    store.error = CoordinationError("no connection to ZooKeeper")
    watcher.turn()
    now[0] += lasted_s
    watcher.turn()
    file = directory / "report.html"
    file.write_text(report_page(watcher))
    return opened(browser, file.as_uri(), viewport={"width": 1280, "height": 900}).page


def test_the_durations_of_an_outage_agree(browser: Browser, tmp_path: Path) -> None:
    page = page_of_an_outage(browser, tmp_path, 3.0)
    entry = page.locator(".incidents li").first
    expect(entry).to_contain_text("has not answered this page for 3 s")
    expect(entry).to_contain_text("3 s ago, step 1,000")
    expect(page.locator(".notice")).to_contain_text("has not answered for 3 s")
    then = page.evaluate(AT_S, CREATED + 600.0)
    step = page.locator(".stats > div", has=page.get_by_text("step", exact=True))
    expect(step.locator("small")).to_have_text(f"epoch 3, at {then}")
    expect(entry).to_contain_text("7 after the last that ZooKeeper knows")
    mark = page.locator(".timeline .mark.tone-bad").last
    expect(mark).to_contain_text("zookeeper away: ZooKeeper does not answer")
    expect(page.locator(".timeline .time.end")).to_have_text(page.evaluate(AT_S, CREATED + 603.0))
    page.context.close()


def test_the_two_times_of_a_step_have_names(browser: Browser, tmp_path: Path) -> None:
    page = page_of_an_outage(browser, tmp_path, 3.0)
    name = page.locator(".stats abbr", has_text=re.compile("^step time$"))
    expect(name).to_have_attribute("title", re.compile("waiting for others included"))
    expect(page.locator(".stats")).to_contain_text("over the last 3 s; step time 210 ms")
    name = page.locator("table.workers abbr", has_text=re.compile("^own time$"))
    expect(name).to_have_attribute("title", re.compile("without reducing and waiting for others"))
    expect(page.locator("#workers-title + .note")).to_contain_text("older than the header")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.context.close()


def test_what_happens_now_has_no_age_of_0_s(browser: Browser, tmp_path: Path) -> None:
    page = page_of_an_outage(browser, tmp_path, 0.2)
    expect(page.locator(".incidents li").first.locator("small").first).to_have_text(
        "now, step 1,000"
    )
    page.context.close()


def test_the_age_of_the_checkpoint_is_counted_until_the_present(
    browser: Browser, tmp_path: Path
) -> None:
    page = page_of_an_outage(browser, tmp_path, 8.0)
    saved_s = 600 - 150 + 8  # the event of the checkpoint is of second 150
    expect(page.locator("#ledger-title ~ .facts")).to_contain_text(
        f"step 400 {saved_s // 60} min {saved_s % 60} s ago"
    )
    page.context.close()
