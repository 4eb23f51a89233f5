"""The page of a real job in headless Chromium: it loads, follows, is clicked, and asks nobody else.

Screenshots lie in the directory that ``EDL_SCREENSHOTS`` names, if it names one; with
``EDL_SCREENSHOTS=docs/figures`` the test of a real job writes those of the guide. ``EDL_AXE`` names
another file of axe-core than the one that `make browser` installs.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from cli_shell import STANDIN, Running, Shell, until
from pages import (
    WAIT_S,
    Opened,
    actions_url_of,
    check_that_it_asks_for_the_token,
    opened,
    url_of,
)
from playwright.sync_api import Browser, Route, expect

from edl.dashboard.view.events import EventBuffer, EventChoice, EventView, event_view
from edl.events import CheckpointFailedDetails, Event

pytestmark = [pytest.mark.integration, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_digits.py"
expect.set_options(timeout=1000 * WAIT_S)


@pytest.fixture
def job(shell: Shell) -> Iterator[Running]:
    end = shell.directory / "end"
    worker = (sys.executable, STANDIN, "--until", str(end))
    limits = ("--min-np", "1", "--max-np", "3")
    one = shell.start("run", "-np", "2", *limits, "--job", "j", "--host", "a", *worker)
    shell.until_size(2)
    yield one
    end.touch()
    one.wait(WAIT_S)


@pytest.fixture
def server(shell: Shell, job: Running) -> Iterator[Running]:
    one = shell.start("dashboard", "j", "--port", "0")
    yield one
    one.process.terminate()
    assert one.wait(WAIT_S) == 0


@pytest.fixture
def shown(browser: Browser, server: Running) -> Iterator[Opened]:
    one = opened(browser, url_of(server), viewport={"width": 1280, "height": 900})
    yield one
    one.page.context.close()


def test_the_page_follows_a_job_through_a_kill_to_its_end(
    shown: Opened, shell: Shell, job: Running
) -> None:
    page = shown.page
    expect(page.get_by_role("heading", name="j", exact=True)).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("training")
    assert "token" not in page.url

    victim = next(one for one in shell.status()["members"] if one["id"] != "w0")
    psutil.Process(victim["pid"]).kill()
    expect(page.locator("table.workers tbody th", has_text=victim["id"])).to_have_count(0)
    expect(page.locator(".events .tone-bad .what").first).to_contain_text(victim["id"])

    page.get_by_role("searchbox").fill("no such words")
    expect(page.get_by_text("No event matches.")).to_be_visible()
    page.get_by_role("searchbox").fill(victim["id"])
    expect(page.locator(".events li").first).to_be_visible()

    (shell.directory / "end").touch()
    assert job.wait(WAIT_S) == 0
    expect(page.get_by_role("status")).to_have_text("finished")
    assert shown.complaints == []
    origin = shown.url.partition("/#")[0]
    assert all(one.url.startswith(origin) for one in shown.requests)
    assert not any("token=" in one.url.partition("#")[0] for one in shown.requests)


def test_it_explains_its_words(shown: Opened) -> None:
    page = shown.page
    for word in ("leader", "term", "generation", "goodput", "samples/s"):
        meaning = page.locator(".stats abbr", has_text=re.compile(f"^{word}$"))
        assert len(str(meaning.get_attribute("title")).split()) > 5, word
    expect(page.locator(".stats")).to_contain_text("over the last 3 s")
    page.locator(".words summary").focus()
    page.keyboard.press("Enter")
    goodput = page.locator(".words div", has=page.get_by_text("goodput", exact=True))
    expect(goodput).to_contain_text("nothing held the training up")
    assert shown.violations() == []


def test_the_keyboard_chooses_a_generation(shown: Opened) -> None:
    page = shown.page
    page.get_by_role("listbox", name="Generations").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator(".details .facts")).to_contain_text("the job started")


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits(browser: Browser, server: Running, width: int, mode: Any) -> None:
    one = opened(
        browser, url_of(server), viewport={"width": width, "height": 800}, color_scheme=mode
    )
    expect(one.page.get_by_role("heading", name="Events")).to_be_visible()
    wide = one.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert one.violations() == []
    ground = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 300) == (mode == "dark")
    one.page.context.close()


def test_without_a_stream_it_polls(browser: Browser, server: Running) -> None:
    one = opened(browser, "about:blank")
    one.page.route("**/api/stream", lambda route: route.abort())
    one.page.goto(url_of(server))
    expect(one.page.get_by_role("status")).to_have_text("training")
    expect(one.page.get_by_text("updated every 2 s")).to_be_visible()
    one.page.context.close()


def test_who_has_no_token_sees_nothing(browser: Browser, server: Running) -> None:
    check_that_it_asks_for_the_token(browser, url_of(server), "job", "training")


def test_a_report_is_the_page_without_a_server(
    browser: Browser, shell: Shell, job: Running
) -> None:
    victim = next(one for one in shell.status()["members"] if one["id"] != "w0")
    psutil.Process(victim["pid"]).kill()
    until(lambda: "worker_failed" in shell.edl("events", "j").stdout, WAIT_S)
    done = shell.edl("report", "j", "-o", "ticket.html")
    assert done.stdout == "edl: job j is reported in ticket.html; open it in a browser\n"
    one = opened(browser, (shell.directory / "ticket.html").as_uri())
    page = one.page
    expect(page.locator(".incidents li", has_text="was killed")).to_contain_text("SIGKILL")
    expect(page.get_by_text("a report: it stays as it is")).to_be_visible()
    page.locator(".band").first.dispatch_event("click")
    expect(page.locator(".details .facts")).to_contain_text("workers")
    page.get_by_role("searchbox").fill("sigkill")
    expect(page.locator(".events li, .events tr", has_text="SIGKILL").first).to_be_visible()
    assert one.violations() == []
    assert [request.url for request in one.requests if not request.url.startswith("data:")] == [
        one.url
    ]
    assert one.complaints == []
    page.context.close()


def test_the_server_goes_and_comes_back(shown: Opened, shell: Shell, server: Running) -> None:
    port = re.search(r":(\d+)/", shown.url)
    assert port is not None
    expect(shown.page.get_by_role("status")).to_have_text("training")
    server.signal(signal.SIGTERM)
    assert server.wait(WAIT_S) == 0
    expect(shown.page.get_by_text("has not answered since")).to_be_visible()
    expect(shown.page.get_by_role("heading", name="j", exact=True)).to_be_visible()
    again = shell.start("dashboard", "j", "--port", port[1])
    expect(shown.page.get_by_text("live", exact=True)).to_be_visible()
    again.process.terminate()
    assert again.wait(WAIT_S) == 0


def test_all_events_can_be_shown(browser: Browser, server: Running) -> None:
    kept: EventBuffer[EventView] = EventBuffer()
    logged = Event(0.0, 1, 1, "invented", CheckpointFailedDetails())
    kept.add(event_view(number, logged) for number in range(640))

    def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        before = int(query["before"][0]) if "before" in query else None
        found = kept.chosen(EventChoice(before=before, limit=int(query["limit"][0])))
        route.fulfill(json={"events": [one.to_json() for one in found]})

    one = opened(browser, "about:blank")
    one.page.route("**/api/events?*", answer)
    one.page.goto(url_of(server))
    shown, more = one.page.locator("ol.events > li"), one.page.get_by_text("Show more")
    for count in (100, 300, 500):
        expect(shown).to_have_count(count)
        more.click()
    expect(shown).to_have_count(640)
    expect(more).to_have_count(0)
    assert one.complaints == []
    one.page.context.close()


def test_it_says_what_happened_and_what_to_do(shown: Opened, shell: Shell, job: Running) -> None:
    page = shown.page
    victim = next(one for one in shell.status()["members"] if one["id"] != "w0")
    psutil.Process(victim["pid"]).kill()
    told = page.locator(".incidents li", has_text="was killed")
    expect(told).to_contain_text(f"{victim['id']} on host a was killed by signal 9 (SIGKILL)")
    expect(told).to_contain_text(f"edl logs j {victim['id']}")
    page.locator(".events .tone-bad summary").first.press("Enter")
    expect(page.locator(".events details[open] dd").last).to_be_visible()
    assert shown.violations() == []


def test_with_the_second_address_the_page_changes_the_job(
    browser: Browser, shell: Shell, job: Running
) -> None:
    server = shell.start("dashboard", "j", "--port", "0", "--actions")
    one = opened(browser, actions_url_of(server), viewport={"width": 360, "height": 900})
    page = one.page
    expect(page.get_by_role("heading", name="Actions")).to_be_visible()
    assert "actions" not in page.url
    scale = page.get_by_role("form", name="Scale")
    scale.get_by_label("workers").fill("3")
    scale.get_by_role("button").click()
    expect(page.get_by_role("dialog")).to_contain_text("Let j have 3 workers?")
    assert one.violations() == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert len(shell.status()["members"]) == 2

    scale.get_by_role("button").press("Enter")
    one.confirm()
    expect(page.get_by_role("status", name="Last action")).to_contain_text("2 -> 3")
    shell.until_size(3)
    expect(page.locator("table.workers tbody tr")).to_have_count(3)
    drain = page.get_by_role("form", name="Drain worker")
    drain.get_by_label("worker").select_option("w1")
    drain.get_by_role("button").click()
    one.confirm()
    expect(page.get_by_role("status", name="Last action")).to_contain_text("w1")
    shell.until_size(2)
    scale.get_by_label("workers").fill("9")
    scale.get_by_role("button").click()
    one.confirm()
    expect(page.get_by_role("status", name="Last action")).to_contain_text("max_np is 3")
    assert one.violations() == []

    preempt = page.get_by_role("form", name="Preempt")
    preempt.get_by_label("within").fill("1m")
    preempt.get_by_role("button").click()
    expect(page.get_by_role("dialog")).to_contain_text("save everything and end within 1m?")
    one.confirm()
    expect(page.get_by_role("status", name="Last action")).to_contain_text("has no checkpoint")
    page.get_by_role("button", name="Stop", exact=True).click()
    one.confirm()
    expect(page.get_by_role("status", name="Last action")).to_contain_text("is stopped: edl stop")
    expect(page.get_by_role("heading", name="Actions")).to_have_count(0)
    page.context.close()
    server.process.terminate()
    assert server.wait(WAIT_S) == 0


def test_without_the_token_for_actions_there_are_none(
    browser: Browser, shell: Shell, job: Running
) -> None:
    ask = """async (token) => {
      const answer = await fetch("/api/actions/scale", {method: "POST", body: '{"np": 3}',
        headers: {Authorization: `Bearer ${token}`, "Edl-Actions": "0".repeat(64)}});
      return [answer.status, (await answer.json()).message];
    }"""
    for options, why in (((), "this dashboard only reads"), (("--actions",), "this page only")):
        server = shell.start("dashboard", "j", "--port", "0", *options)
        url = url_of(server)
        one = opened(browser, url)
        expect(one.page.get_by_role("status")).to_have_text("training")
        expect(one.page.get_by_role("heading", name="Actions")).to_have_count(0)
        status, said = one.page.evaluate(ask, url.partition("token=")[2])
        assert (status, said.startswith(why)) == (403, True)
        one.page.context.close()
        server.process.terminate()
        assert server.wait(WAIT_S) == 0
    assert sum(shell.status()["desired"].values()) == 2


def test_a_real_training_is_scaled_and_loses_its_leader(browser: Browser, shell: Shell) -> None:
    script = (sys.executable, str(EXAMPLE), "--epochs", "100000", "--step-delay", "0.05")
    limits = ("--min-np", "1", "--max-np", "3")
    training = shell.start("run", "-np", "2", *limits, "--job", "j", "--host", "a", *script)
    shell.until_size(2)
    server = shell.start("dashboard", "j", "--port", "0")
    one = opened(browser, url_of(server), viewport={"width": 1280, "height": 1180})
    page = one.page
    expect(page.locator("table.workers .bar")).to_have_count(2)
    assert shell.edl("scale", "j", "--np", "3").returncode == 0
    expect(page.locator("table.workers .bar")).to_have_count(3)
    leader = next(each for each in shell.status()["members"] if each["id"] == "w0")
    psutil.Process(leader["pid"]).kill()
    expect(page.locator(".stats")).to_contain_text(re.compile(r"term 2, since \d"))
    expect(page.locator(".incidents")).to_contain_text("w0 on host a was killed by signal 9")
    expect(page.locator(".incidents")).to_contain_text("The other 2 workers went on from step")
    expect(page.locator(".timeline .legend")).to_contain_text("failure")
    expect(page.locator(".mark.tone-bad title")).to_contain_text("term 2; before, w0 led")
    expect(page.get_by_role("img", name="Loss over the steps")).to_be_visible()
    expect(page.locator("table.workers .bar")).to_have_count(3)
    expect(page.locator("[aria-labelledby=ledger-title]")).to_contain_text("trained")

    page.locator(".band.cause-crash").first.dispatch_event("click")
    expect(page.locator(".details .facts")).to_contain_text("a crash was repaired")
    expect(page.locator("table.parts")).to_be_visible()
    one.shot("dashboard-light")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("table.parts")).to_be_visible()
    one.shot("dashboard-dark")
    page.get_by_role("listbox", name="Generations").press("Escape")
    expect(page.locator(".details")).to_have_count(0)
    page.set_viewport_size({"width": 360, "height": 1180})
    page.emulate_media(color_scheme="light")
    one.shot("dashboard-phone")
    assert one.complaints == []
    page.context.close()

    assert shell.edl("stop", "j").returncode == 0
    training.wait(WAIT_S)
    server.process.terminate()
    assert server.wait(WAIT_S) == 0
