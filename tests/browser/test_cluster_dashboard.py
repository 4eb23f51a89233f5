"""The page of a real cluster in headless Chromium: a controller, hosts, and jobs that come and go.

With ``EDL_SCREENSHOTS=docs/figures`` the last test writes the screenshots of the guide.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
from playwright.sync_api import Browser, Locator, expect

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONTROLLER = ("cluster", "start", "--name", "lab", "--policy", "max_min")
WINDOW = {"width": 1280, "height": 900}
expect.set_options(timeout=1000 * WAIT_S)


@dataclass
class Lab:
    """A cluster with one host of 4 slots, whose jobs train until they are told to finish."""

    shell: Shell
    controller: Running
    hosts: list[Running]

    def submit(self, name: str, least: int, most: int, **manifest: Any) -> None:
        script, end = self.shell.directory / f"{name}.sh", self.shell.directory / f"end-{name}"
        script.write_text(f"exec {sys.executable} {STANDIN} --until {end}\n")
        values = {
            "name": name,
            "command": ["sh", script.name],
            "min": least,
            "max": most,
            **manifest,
        }
        path = self.shell.directory / f"{name}.yaml"
        path.write_text(json.dumps(values, indent=1) + "\n")
        done = self.shell.edl("submit", str(path))
        assert done.returncode == 0, done.stderr

    def finish(self, *jobs: str) -> None:
        for job in jobs:
            (self.shell.directory / f"end-{job}").touch()

    def states(self) -> dict[str, str]:
        lines = self.shell.edl("list", "--json").stdout.splitlines()
        return {one["name"]: one["result"] or one["state"] for one in map(json.loads, lines)}

    def until(self, **states: str) -> None:
        until(lambda: states.items() <= self.states().items(), WAIT_S, lambda: str(self.states()))

    def offer(self, host: str, slots: int, *options: str) -> None:
        words = ("host", "--cluster", "lab", "--host", host, "--slots", str(slots), *options)
        self.hosts.append(self.shell.start(*words))
        self.hosts[-1].expect(f"host {host} offers")

    def end(self) -> None:
        self.finish(*self.states())
        for job, state in self.states().items():
            if state in ("queued", "halted"):
                self.shell.edl("delete", job)
        for one in (*self.hosts, self.controller):
            one.signal(signal.SIGTERM)
            one.wait(WAIT_S)


@pytest.fixture
def lab(shell: Shell) -> Iterator[Lab]:
    controller = shell.start(*CONTROLLER)
    controller.expect("leads cluster lab")
    one = Lab(shell, controller, [])
    one.offer("a", 4)
    yield one
    one.end()


@pytest.fixture
def server(shell: Shell, lab: Lab) -> Iterator[Running]:
    one = shell.start("dashboard", "--port", "0")
    yield one
    one.process.terminate()
    assert one.wait(WAIT_S) == 0


@pytest.fixture
def shown(browser: Browser, server: Running) -> Iterator[Opened]:
    one = opened(browser, url_of(server), viewport=WINDOW)
    yield one
    one.page.context.close()


def row(shown: Opened, job: str) -> Locator:
    name = re.compile(rf"^{job}$")
    return shown.page.locator("table.cluster-jobs tbody tr").filter(
        has=shown.page.get_by_role("button", name=name)
    )


def test_the_page_follows_jobs_that_come_wait_and_go(shown: Opened, lab: Lab) -> None:
    page = shown.page
    expect(page.get_by_role("heading", name="lab", exact=True)).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("0 of 4 slots in use")
    assert "token" not in page.url
    lab.submit("first", 3, 4)
    expect(row(shown, "first")).to_contain_text("running")
    lab.submit("second", 2, 2)
    expect(row(shown, "second")).to_contain_text("queued")
    expect(row(shown, "second")).to_contain_text("place 1 of 1 in the queue")
    expect(page.locator(".gantt .box title", has_text="first").first).to_contain_text("of a")

    page.get_by_role("searchbox", name="Filter jobs by words").fill("no such words")
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.get_by_role("searchbox", name="Filter jobs by words").fill("")
    assert lab.shell.edl("delete", "first").returncode == 0
    expect(row(shown, "second")).to_contain_text("running")
    expect(page.locator(".gantt .box title", has_text="second").first).to_contain_text("of a")
    expect(row(shown, "first")).to_contain_text("deleted")
    expect(page.get_by_role("status")).to_have_text("2 of 4 slots in use")

    row(shown, "second").get_by_role("button").click()
    page.get_by_role("link", name="Workers, speed and events of second").click()
    expect(page.get_by_role("heading", name="second", exact=True)).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("training")
    page.get_by_role("link", name="The cluster").click()
    expect(row(shown, "second")).to_be_visible()
    assert shown.complaints == []
    origin = shown.url.partition("/#")[0]
    assert all(one.url.startswith(origin) for one in shown.requests)
    assert not any("token=" in one.url.partition("#")[0] for one in shown.requests)


def test_it_survives_the_death_of_the_controller(shown: Opened, lab: Lab) -> None:
    page = shown.page
    lab.submit("j", 2, 2)
    expect(row(shown, "j")).to_contain_text("running")
    lab.controller.signal(signal.SIGKILL)
    lab.controller.wait(WAIT_S)
    expect(page.get_by_role("status")).to_have_text("no controller leads")
    expect(page.get_by_role("alert")).to_contain_text("No controller has led since")
    expect(page.get_by_role("alert")).to_contain_text("The reasons below are from")
    expect(row(shown, "j")).to_be_visible()
    lab.controller = lab.shell.start(*CONTROLLER)
    expect(page.get_by_role("status")).to_have_text("2 of 4 slots in use")
    expect(page.get_by_role("alert")).to_be_empty()
    assert shown.complaints == []


def test_it_fits_can_be_used_by_keyboard_and_is_accessible(
    browser: Browser, server: Running, lab: Lab
) -> None:
    lab.submit("j", 2, 2)
    lab.submit("waits", 4, 4)
    lab.until(j="running", waits="queued")
    for width in (360, 1280):
        for mode in ("light", "dark"):
            scheme: Any = mode
            one = opened(
                browser,
                url_of(server),
                viewport={"width": width, "height": 800},
                color_scheme=scheme,
            )
            page = one.page
            expect(row(one, "waits")).to_be_visible()
            expect(page.locator(".gantt .box").first).to_be_visible()
            focus(one, "waits")
            page.keyboard.press("Enter")
            expect(page.locator(".opened")).to_contain_text("It was never started")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert one.violations() == [], (width, mode)
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 300) == (mode == "dark")
            assert one.complaints == []
            page.context.close()


def test_jobs_that_are_shown_together_have_different_colours(shown: Opened) -> None:
    expect(shown.page.get_by_role("status")).to_contain_text("slots in use")
    found = shown.page.evaluate(
        """async () => {
          const { JobColours } = await import("/static/cluster_colours.mjs");
          const colours = new JobColours();
          const show = (...jobs) => {
            colours.show(jobs);
            return jobs.map((job) => colours.of(job));
          };
          const jobs = Array.from({ length: 20 }, (_, number) => `job-${number}`);
          return {
            alike: [show("bert"), new JobColours().of("bert"), new JobColours().of("resnet")],
            both: show("resnet", "bert"),
            eight: show(...jobs.slice(0, 8)),
            twenty: show(...jobs),
            again: show(...jobs),
            left: show(...jobs.slice(3, 11)),
          };
        }"""
    )
    (bert,), own, other = found["alike"]
    assert bert == own == other, "by their names they would be alike"
    assert found["both"][1] == bert, "a job keeps its colour"
    assert found["both"][0] != bert
    assert sorted(found["eight"]) == list(range(8))
    assert found["twenty"][:8] == found["eight"]
    assert sorted(Counter(found["twenty"]).values()) == [2, 2, 2, 2, 3, 3, 3, 3]
    assert found["again"] == found["twenty"]
    assert sorted(found["left"]) == list(range(8))


def focus(shown: Opened, button: str) -> None:
    for _ in range(60):
        shown.page.keyboard.press("Tab")
        if shown.page.evaluate("document.activeElement.textContent.trim()") == button:
            return
    raise AssertionError(f"Tab does not reach {button}")


def test_a_tenant_sees_its_own_jobs_only(browser: Browser, shell: Shell, lab: Lab) -> None:
    assert shell.edl("tenant", "create", "ann").returncode == 0
    assert shell.edl("queue", "set", "research", "--quota", "2", "--tenant", "ann").returncode == 0
    assert shell.edl("queue", "set", "prod", "--quota", "2").returncode == 0
    lab.submit("covert", 2, 2, queue="prod")
    lab.until(covert="running")
    secret = shell.directory / "state" / "edl" / "clusters" / "lab" / "tenants" / "ann"
    shell.environment["EDL_SECRET_FILE"] = str(secret)
    lab.submit("own", 2, 2)
    server = shell.start("dashboard", "--port", "0")
    one = opened(browser, url_of(server), viewport=WINDOW)
    page = one.page
    expect(page.get_by_role("status")).to_have_text("the jobs of tenant ann")
    expect(row(one, "ann.own")).to_contain_text("running")
    row(one, "ann.own").get_by_role("button").click()
    page.get_by_role("link", name="Workers, speed and events of ann.own").click()
    expect(page.get_by_role("status")).to_have_text("training")
    page.goto(f"{one.url.partition('/#')[0]}/jobs/covert/")
    expect(page.get_by_text("there is no job named 'ann.covert'")).to_be_visible()
    page.goto(one.url)
    expect(row(one, "ann.own")).to_be_visible()
    assert "covert" not in page.content()
    expect(page.get_by_role("heading", name="Hosts")).to_have_count(0)
    page.context.close()
    server.process.terminate()
    assert server.wait(WAIT_S) == 0
    del shell.environment["EDL_SECRET_FILE"]


def test_with_the_second_address_jobs_and_hosts_are_steered(browser: Browser, lab: Lab) -> None:
    shell = lab.shell
    lab.submit("first", 2, 4)
    lab.until(first="running")
    server = shell.start("dashboard", "--port", "0", "--actions")
    one = opened(browser, actions_url_of(server), viewport=WINDOW)
    page, last = one.page, one.page.get_by_role("status", name="Last action")
    row(one, "first").get_by_role("button").click()
    page.get_by_role("form", name="Set priority").get_by_label("priority").fill("7")
    page.get_by_role("button", name="Set priority").click()
    one.confirm()
    expect(last).to_have_text("job first has priority 7")
    expect(row(one, "first")).to_contain_text("7")
    page.get_by_role("button", name="Halt", exact=True).click()
    assert one.violations() == []
    one.confirm()
    expect(row(one, "first")).to_contain_text("halted")
    page.get_by_role("button", name="Resume", exact=True).click()
    one.confirm()
    expect(row(one, "first")).to_contain_text("running")

    page.get_by_role("link", name="Workers, speed and events of first").click()
    expect(page.get_by_role("heading", name="Actions")).to_be_visible()
    page.get_by_role("button", name="Halt", exact=True).click()
    one.confirm()
    expect(last).to_have_text("job first is to halt")
    page.get_by_role("link", name="The cluster").click()
    expect(row(one, "first")).to_contain_text("halted")
    page.get_by_role("button", name="Drain", exact=True).click()
    one.confirm()
    expect(page.locator("table.hosts tbody tr")).to_contain_text("drained")
    row(one, "first").get_by_role("button").click()
    page.get_by_role("button", name="Cancel job").click()
    one.confirm()
    expect(row(one, "first")).to_contain_text("deleted")
    by = {
        json.loads(line)["by"]
        for line in shell.edl("events", "first", "--json").stdout.split("\n")
        if line
    }
    assert any(one.endswith("through the dashboard") for one in by)
    page.context.close()
    server.process.terminate()
    assert server.wait(WAIT_S) == 0


def test_who_has_no_token_sees_nothing(browser: Browser, server: Running) -> None:
    check_that_it_asks_for_the_token(browser, url_of(server), "cluster", "slots in use")


def test_a_cluster_with_queues_hosts_and_a_history(browser: Browser, lab: Lab) -> None:
    shell = lab.shell
    for queue, options in {"prod": ("--quota", "4"), "research": ("--quota", "2")}.items():
        assert shell.edl("queue", "set", queue, *options).returncode == 0
    lab.offer("b", 2)
    lab.offer("c", 2)
    lab.submit("warm-up", 1, 2, queue="research")
    lab.until(**{"warm-up": "running"})
    lab.submit("digits", 2, 4, queue="prod")
    lab.until(digits="running")
    lab.submit("bert", 2, 3, queue="research")
    lab.until(bert="running")
    lab.finish("warm-up")
    lab.until(**{"warm-up": "finished"})
    lab.submit("resnet", 2, 2, queue="prod", priority=5)
    lab.submit("large", 8, 8, queue="research")
    assert shell.edl("drain", "c", "--cluster", "lab").returncode == 0
    lab.until(resnet="running", large="queued")
    server = shell.start("dashboard", "--port", "0")
    one = opened(browser, url_of(server), viewport={"width": 1280, "height": 1180})
    page = one.page
    page.get_by_role("button", name="15 min").click()
    expect(page.locator(".gantt .box title", has_text="warm-up").first).to_be_attached()
    expect(page.locator("table.hosts tbody tr").first).to_contain_text("drained")
    expect(page.locator("table.queues tbody tr")).to_have_count(2)
    swatches = page.locator("table.cluster-jobs .swatch")
    expect(swatches).to_have_count(5)
    assert len(set(swatches.evaluate_all("all => all.map(one => one.className)"))) == 5
    row(one, "large").get_by_role("button").click()
    expect(page.locator(".opened")).to_contain_text("asks for")
    one.shot("dashboard-cluster-light")
    page.emulate_media(color_scheme="dark")
    one.shot("dashboard-cluster-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 1180})
    expect(page.locator(".gantt svg")).to_be_visible()
    one.shot("dashboard-cluster-phone")
    assert one.complaints == []
    page.context.close()
    server.process.terminate()
    assert server.wait(WAIT_S) == 0
