"""The docs name what exists, and everything that exists; their links lead somewhere."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from edl.cli.main import app
from edl.config import Config
from edl.install import horovod_edits

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
FIGURES = sorted((ROOT / "docs").rglob("*.svg"))
ALL = "\n".join(TEXTS.values())

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# Where the docs may send a reader: public places only.
HOSTS = {"keepachangelog.com", "semver.org"}
EXAMPLE_HOSTS = {"ADDR:PORT"}  # in code, as Horovod builds its URL


def public(package: str) -> list[str]:
    """``__all__`` of a package of the API, read: importing the frameworks takes seconds."""
    tree = ast.parse((ROOT / "edl" / package / "__init__.py").read_text(encoding="utf-8"))
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


API = [("torch", "api.md", each) for each in public("torch")]
API += [("tensorflow", "tensorflow.md", each) for each in public("tensorflow")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for link in LINK.findall(TEXTS[page]):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        known = anchors(target.read_text(encoding="utf-8")) if target.is_file() else set()
        if not target.exists() or (anchor and anchor not in known):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("field", fields(Config), ids=lambda field: field.name)
def test_every_setting_stands_in_the_table_with_its_default(field) -> None:
    variable = f"EDL_{field.name.upper()}"
    row = re.search(
        rf"^\| `{field.name}` \| `{variable}` \| (.+?) \| (.+) \|$", ALL, flags=re.MULTILINE
    )
    assert row, f"docs/operations.md has no row for the setting {field.name} ({variable})"
    told = row[1].strip("`")
    if isinstance(field.default, bool):
        assert told == str(int(field.default))
    elif isinstance(field.default, int | float):
        assert float(told) == field.default
    elif field.default:
        assert told == field.default


def test_the_table_has_no_setting_that_does_not_exist() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `EDL_", ALL, flags=re.MULTILINE)
    assert set(rows) <= {field.name for field in fields(Config)}


def verbs() -> list[str]:
    found = []
    for command in app.registered_commands:
        assert command.name
        found.append(command.name)
    for group in app.registered_groups:
        assert group.name
        found.append(group.name)
    return sorted(found)


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_stands_in_the_operations(verb: str) -> None:
    operations = TEXTS[ROOT / "docs" / "operations.md"]
    assert re.search(rf"^\| `edl {verb}\b", operations, flags=re.MULTILINE)


def test_no_page_names_a_verb_that_does_not_exist() -> None:
    code = re.findall(r"`edl ([a-z][a-z-]+)", ALL)
    assert set(code) <= set(verbs())


@pytest.mark.parametrize(("package", "page", "function"), API)
def test_every_public_name_stands_in_the_api(package: str, page: str, function: str) -> None:
    assert f"edl.{function}" in TEXTS[ROOT / "docs" / page]


def test_no_page_names_a_function_that_does_not_exist() -> None:
    called = set(re.findall(r"\bedl\.(\w+)\(", ALL))
    assert called <= {function for _, _, function in API}


@pytest.mark.parametrize("edit", sorted(horovod_edits.LOST_WITHOUT))
def test_every_edit_of_horovod_is_explained(edit: str) -> None:
    assert f"`{edit}`" in TEXTS[ROOT / "docs" / "operations.md"]


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", TEXTS[README], flags=re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_every_decision_is_listed_and_fits_on_a_page() -> None:
    folder = ROOT / "docs" / "adr"
    listed = LINK.findall(TEXTS[folder / "README.md"])
    decisions = sorted(page.name for page in folder.glob("0*.md"))
    assert listed == decisions
    assert all(len(TEXTS[folder / each].splitlines()) <= 60 for each in decisions)


@pytest.mark.parametrize("page", [*PAGES, *FIGURES], ids=name)
def test_nothing_of_a_machine_is_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(work|root|tmp)/", text)
    named = {urlsplit(url).netloc for url in re.findall(r"https?://[^\s)>\"`]+", text)}
    allowed = HOSTS | EXAMPLE_HOSTS | ({"www.w3.org"} if page.suffix == ".svg" else set())
    assert named <= allowed


def test_the_figures_are_well_formed() -> None:
    from xml.etree import ElementTree

    assert FIGURES
    for figure in FIGURES:
        root = ElementTree.fromstring(figure.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}title") is not None
