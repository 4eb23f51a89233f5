"""Keep the newest page as JSON, and give each browser the sections that it does not have yet."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edl.core.json_text import json_text


@dataclass(frozen=True)
class PageSection:
    content: bytes  # the section as JSON
    version: int  # the version of the page that changed it last


@dataclass(frozen=True)
class PublishedPage:
    """The newest page: its sections, each with the version that changed it."""

    # a random text that another server, or another start of the job, does not have; a browser that
    # has another one gets the whole page
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    version: int = 0  # the version of the page; it grows with each change
    sections: Mapping[str, PageSection] = field(default_factory=dict)  # the sections by name

    def with_sections(self, sections: Mapping[str, Any]) -> PublishedPage:
        """Return the page with `sections` in place of those of these names; others stay."""
        version, new = self.version + 1, dict(self.sections)
        for name, value in sections.items():
            content = json_text(value)
            if name not in new or new[name].content != content:
                new[name] = PageSection(content, version)
        changed = any(one.version == version for one in new.values())
        return replace(self, version=version, sections=new) if changed else self

    def patch(self, instance: str = "", since: int = 0) -> bytes:
        """Return, as JSON, the sections that changed after version `since` of `instance`."""
        known = since if instance == self.instance else 0
        parts = ",".join(
            f'"{name}":{one.content.decode()}'
            for name, one in self.sections.items()
            if one.version > known
        )
        head = f'"instance":"{self.instance}","version":{self.version}'
        return f'{{{head},"sections":{{{parts}}}}}'.encode()
