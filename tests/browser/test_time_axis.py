"""The texts below a chart's time axis in headless Chromium, in a page of an invented job."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pages import opened
from playwright.sync_api import Browser
from shown_job import ShownStore

from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.report import report_page

pytestmark = [pytest.mark.integration, pytest.mark.long]
ZONE = "Europe/Berlin"
HOUR_S = 3600
TEXTS = "(at) => import('charts.mjs').then((all) => all.timeAxis().values(null, at))"


def test_ticks_of_several_days_have_their_day(browser: Browser, tmp_path: Path) -> None:
    store: Any = ShownStore()
    watcher = JobWatcher(store)
    watcher.turn()
    file = tmp_path / "report.html"
    file.write_text(report_page(watcher))
    one = opened(browser, file.as_uri(), timezone_id=ZONE)
    began = datetime(2026, 11, 28, 18, 0, tzinfo=ZoneInfo(ZONE)).timestamp()

    def texts(*after_s: int) -> list[str]:
        """Return the texts of ticks so many seconds after 18:00 on 28 November."""
        found: list[str] = one.page.evaluate(TEXTS, [began + each for each in after_s])
        return found

    assert texts(0, 30) == ["18:00:00", "18:00:30"]
    assert texts(0, HOUR_S) == ["18:00", "19:00"]
    quarters = [6 * HOUR_S * n for n in range(6)]
    assert texts(*quarters) == ["18:00", "29 Nov", "06:00", "12:00", "18:00", "30 Nov"]
    assert texts(5 * HOUR_S, 10 * HOUR_S) == ["23:00", "29 Nov 04:00"]
    days = [(6 + 24 * n) * HOUR_S for n in range(3)]
    assert texts(*days) == ["29 Nov", "30 Nov", "1 Dec"]
    assert one.complaints == []
    one.page.context.close()
