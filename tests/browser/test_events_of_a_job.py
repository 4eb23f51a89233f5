"""The list of events in a job's page in headless Chromium, of an invented job, as a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import opened
from playwright.sync_api import Browser, expect
from shown_job import ShownStore, event

from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.report import report_page
from edl.events import CheckpointDetails, PausedDetails

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_checkpoints_in_a_row_are_folded(browser: Browser, tmp_path: Path) -> None:
    store: Any = ShownStore()
    saved = CheckpointDetails("/ckpt/x", 5_200_000, 0.012, 0.2)
    paused = event(535, PausedDetails(1, 2), 5, 1250, "too few workers")
    rows = [event(500 + 10 * n, saved, 5, 1100 + 50 * n, f"saved {n}") for n in range(5)]
    store.log += [*rows[:4], paused, rows[4]]
    watcher = JobWatcher(store)
    watcher.turn()
    file = tmp_path / "report.html"
    file.write_text(report_page(watcher))
    one = opened(browser, file.as_uri(), viewport={"width": 1280, "height": 900})
    rows_of = one.page.locator(".events li")
    assert rows_of.count() == len(store.log) - 3
    expect(rows_of.first).to_contain_text("saved 4")
    several = rows_of.nth(2)
    expect(several.locator("summary")).to_have_text("4 checkpoints, steps 1,100 to 1,250")
    expect(several.get_by_text("saved 2")).not_to_be_visible()
    several.locator("summary").click()
    expect(several.get_by_text("saved 2")).to_be_visible()
    one.page.get_by_role("searchbox").fill("saved")
    expect(rows_of).to_have_count(6)
    assert one.complaints == []
    assert one.violations() == []
    one.page.context.close()
