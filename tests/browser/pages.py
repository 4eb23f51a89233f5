"""A page of the dashboard in the browser: its requests, complaints and screenshots."""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli_shell import Running
from PIL import Image
from playwright.sync_api import Browser, Page, Request, expect

WAIT_S = 120.0
COLOURS = 160  # of a screenshot, which makes it half as large
AXE = Path(
    os.environ.get("EDL_AXE")
    or Path(sys.prefix, "browser", "node_modules", "axe-core", "axe.min.js")
)


@dataclass
class Opened:
    """A page in the browser, with what it has asked for and complained of."""

    page: Page
    url: str
    requests: list[Request] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def shot(self, name: str) -> None:
        """Save a screenshot of what the window shows, if somebody wants screenshots."""
        where = os.environ.get("EDL_SCREENSHOTS")
        if where:
            shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
            shot.quantize(COLOURS).save(Path(where) / f"{name}.png", optimize=True)

    def confirm(self) -> None:
        """Say yes to the question whether to do it, by the keyboard."""
        button = self.page.get_by_role("button", name="Yes, do it")
        button.wait_for()
        button.press("Enter")

    def violations(self) -> list[str]:
        """Return which rules of accessibility the page violates, by axe-core."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run().then((all) => all.violations)")
        return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in found]


def url_of(server: Running) -> str:
    server.expect("Ctrl-C ends the server", WAIT_S)
    found = re.search(r"http://\S+", server.output)
    assert found is not None
    return found[0]


def actions_url_of(server: Running) -> str:
    """Return the address with the token for actions, which `edl dashboard --actions` prints."""
    url_of(server)
    found = re.search(r"http://\S+&actions=\S+", server.output)
    assert found is not None
    return found[0]


def opened(browser: Browser, url: str, **options: Any) -> Opened:
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(1000 * WAIT_S)
    one = Opened(page, url)
    page.on("request", lambda request: one.requests.append(request))
    page.on("pageerror", lambda error: one.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: one.complaints.append(said.text) if said.type == "error" else None,
    )
    page.goto(url)
    return one


def check_that_it_asks_for_the_token(browser: Browser, url: str, what: str, words: str) -> None:
    """Fail unless the page shows nothing to a wrong token, and ``words`` to that of ``url``."""
    one = opened(browser, url.partition("#")[0])
    field = one.page.get_by_label("Address or token")
    field.fill("wrong")
    one.page.keyboard.press("Enter")
    expect(one.page.get_by_text(f"The token is not that of this {what}.")).to_be_visible()
    expect(one.page.get_by_role("status")).to_have_count(0)
    field.fill(url)
    one.page.keyboard.press("Enter")
    expect(one.page.get_by_role("status")).to_contain_text(words)
    one.page.context.close()
