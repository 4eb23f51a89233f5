"""A page that is open for long stays as large as it was: an hour's 3,600 updates, in minutes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from cli_shell import Running, Shell, until
from pages import WAIT_S, opened, url_of
from playwright.sync_api import Browser, CDPSession, Page, Route, expect

pytestmark = [pytest.mark.integration, pytest.mark.long]

BUSY = str(Path(__file__).with_name("busy_job.py"))
EVERY, LAST = 300, 3600  # updates: between two looks, and those of an hour
WHOLE_S = 600.0  # for all of them, beside other work
COUNT = """
  const parse = JSON.parse;
  window.updates = 0;
  JSON.parse = (text) => { window.updates += 1; return parse(text); };
"""
DRAWN = """() => {
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
  let count = 1;
  while (walker.nextNode()) count += 1;
  return [count, document.querySelectorAll(".band").length];
}"""


@dataclass(frozen=True)
class Size:
    """What a page holds in the browser after its garbage was collected."""

    heap_bytes: float
    detached: float  # nodes that are not in the document (any more), but are not free either
    listeners: float  # of events, beyond one for each band of the time line


@pytest.fixture
def busy(shell: Shell) -> Iterator[Running]:
    """Start the page of a job that changes fifty times a second."""
    one = shell.launch([sys.executable, BUSY], "busy.log")
    yield one
    one.signal(signal.SIGTERM)
    one.wait(WAIT_S)


def size(page: Page, tools: CDPSession) -> Size:
    for _ in range(3):  # what a collection frees, may have held other things
        tools.send("HeapProfiler.collectGarbage")
        page.wait_for_timeout(200)
    metrics = tools.send("Performance.getMetrics")["metrics"]
    found = {one["name"]: one["value"] for one in metrics}
    drawn, bands = page.evaluate(DRAWN)
    heap_bytes, nodes, listeners = (
        found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")
    )
    return Size(heap_bytes, nodes - drawn, listeners - bands)


def test_an_hour_of_updates_leaves_nothing_behind(browser: Browser, busy: Running) -> None:
    one = opened(browser, "about:blank", viewport={"width": 1280, "height": 900})
    page = one.page
    page.add_init_script(COUNT)
    page.goto(url_of(busy))
    page.wait_for_selector(".incidents li")
    page.locator(".band").first.dispatch_event("click")
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable")
    tools.send("HeapProfiler.enable")
    sizes: list[Size] = []
    for count in range(EVERY, LAST + 1, EVERY):

        def updated(count: int = count) -> bool:
            return bool(page.evaluate("window.updates") >= count)

        until(updated, WHOLE_S, lambda: f"no {LAST} updates: {sizes}")
        sizes.append(size(page, tools))
    first, last = sizes[: len(sizes) // 3], sizes[-len(sizes) // 3 :]
    heap_bytes = [median(one.heap_bytes for one in part) for part in (first, last)]
    assert heap_bytes[1] < 1.3 * heap_bytes[0] + 2e6, sizes
    assert max(one.detached for one in last) < max(one.detached for one in first) + 300, sizes
    assert max(one.listeners for one in last) <= max(one.listeners for one in first) + 20, sizes
    assert one.complaints == []
    page.context.close()


def test_events_that_come_faster_than_answers_are_listed(busy: Running, browser: Browser) -> None:
    """Each change of the job asks for the events anew, and each answer takes a second."""
    one = opened(browser, url_of(busy), viewport={"width": 1280, "height": 900})

    def answer_late(route: Route) -> None:
        one.page.wait_for_timeout(1000)
        route.continue_()

    one.page.route("**/api/events*", answer_late)
    one.page.get_by_role("searchbox").fill("no such words")
    expect(one.page.get_by_text("No event matches.")).to_be_visible()
    one.page.get_by_role("searchbox").fill("was killed")
    expect(one.page.locator(".events li").first).to_contain_text("was killed")
    one.page.context.close()
