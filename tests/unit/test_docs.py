"""The docs name what exists, and everything that exists; their links lead somewhere."""

from __future__ import annotations

import ast
import gzip
import inspect
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import docs_tables
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rooms_svg
import typer
from tfrecords import framed

import edl.data
from edl.client import Cluster, Job
from edl.events import EventKind
from edl.install import horovod_wheel

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
GUIDES, REFERENCE = DOCS / "guides", DOCS / "reference"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted(RESULTS.glob("*.md")),
]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
FIGURES = sorted([*DOCS.rglob("*.svg"), *RESULTS.glob("*.svg")])
ALL = "\n".join(TEXTS.values())
HOROVOD_EXAMPLES = sorted((ROOT / "examples" / "horovod").glob("*.py"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# Where the docs may send a reader: public places only.
HOSTS = {"keepachangelog.com", "semver.org"}
EXAMPLE_HOSTS = {
    "ADDR:PORT",  # in code, as Horovod builds its URL
    "127.0.0.1:8470",  # what `edl dashboard` prints
    "host-a:9400",  # as Prometheus is told of agents
    "host-b:9400",
    "10.0.0.5:9400",
    "10.0.0.5:4318",
}


def public(package: str) -> list[str]:
    """``__all__`` of a package of the API, read: importing the frameworks takes seconds."""
    tree = ast.parse((ROOT / "edl" / package / "__init__.py").read_text(encoding="utf-8"))
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


API = [("pytorch", each) for each in public("torch")]
API += [("tensorflow", each) for each in public("tensorflow")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
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
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert not broken


GROUPS = ("get-started", "guides", "reference", "explanation")


def test_the_start_page_lists_every_page() -> None:
    start = TEXTS[DOCS / "README.md"]
    pages = [page.relative_to(DOCS) for group in GROUPS for page in (DOCS / group).glob("*.md")]
    tables = start.partition("## Questions")[0]
    assert [str(page) for page in pages if f"]({page})" not in tables] == []


@pytest.mark.parametrize("page", [one for one in PAGES if one.parent.name in GROUPS], ids=name)
def test_no_page_is_longer_than_a_reader_reads(page: Path) -> None:
    """Generated tables do not count."""
    text = re.sub(r"<!-- generated: .*?<!-- end -->", "", TEXTS[page], flags=re.DOTALL)
    assert len(text.split()) <= 2500


OPTIONS = {
    path: {
        option
        for parameter in verb.params
        if not getattr(parameter, "hidden", False)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for path, verb in docs_tables.verbs()
}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_generated_tables_are_what_the_code_says(page: Path) -> None:
    assert docs_tables.filled(TEXTS[page]) == TEXTS[page], "run `make docs`"


def test_the_figure_of_the_rooms_is_what_the_code_says() -> None:
    assert rooms_svg.SVG.read_text("utf-8") == rooms_svg.drawing(), "run `make docs`"


def test_every_table_is_in_one_page() -> None:
    named = re.findall(r"<!-- generated: ([\w-]+) -->", ALL)
    assert sorted(named) == sorted(docs_tables.TABLES)


@pytest.mark.parametrize("path", OPTIONS)
def test_every_option_of_a_verb_stands_in_the_reference(path: str) -> None:
    commands = TEXTS[REFERENCE / "commands.md"]
    (section,) = re.findall(rf"^### {path}\n(.*?)(?=^###|^<!-- end)", commands, re.M | re.S)
    documented = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?:=[a-z]+)?", section))
    assert {option for option in OPTIONS[path] if option.startswith("-")} <= documented


def test_options_of_edl_run_are_shown_before_the_users_command() -> None:
    (shown,) = re.findall(r"^`(edl run .*)`$", TEXTS[REFERENCE / "commands.md"], re.M)
    assert re.fullmatch(r"edl run \[OPTIONS\] (\[--.+\] )+COMMAND…", shown)


def test_only_the_value_of_an_option_that_is_a_number_is_called_n() -> None:
    app = typer.Typer()

    @app.command()
    def verb(
        steps: Annotated[int, typer.Option("--steps")] = 1,
        output: Annotated[Path | None, typer.Option("--output")] = None,
    ) -> None: ...

    number, path = typer.main.get_command(app).params[:2]
    assert docs_tables._call(number) == "--steps N"
    with pytest.raises(ValueError, match="--output needs a metavar: its value is no number"):
        docs_tables._call(path)


def calls() -> list[list[str]]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", ALL, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", ALL, flags=re.M | re.S))
    found = [re.split(r" python | #|\. ", line)[0].split() for line in lines]
    return [words for words in found if words[:1] == ["edl"] and len(words) > 1]


def test_no_page_names_a_verb_or_an_option_that_does_not_exist() -> None:
    groups = {path.rsplit(" ", 1)[0] for path in OPTIONS if path.count(" ") == 2}
    wrong = []
    for words in calls():
        if re.fullmatch(r"[A-Z]+|-.*|<.*", words[1]) or " ".join(words) in groups:
            continue  # `edl COMMAND`, `edl --version`
        path = " ".join(words[: 3 if f"edl {words[1]}" in groups else 2]).split("|")[0]
        named = {word.strip("[],").split("=")[0] for word in words if word.strip("[")[0] == "-"}
        if (
            path not in OPTIONS
            or not {n for n in named if re.match("--?[a-z]", n)} <= OPTIONS[path]
        ):
            wrong.append(" ".join(words))
    assert not wrong


def test_no_page_names_a_kind_of_event_that_does_not_exist() -> None:
    named = set(re.findall(r"(?:event|events) `(\w+)`|`(\w+)` events?\b", ALL))
    assert {kind for pair in named for kind in pair if kind} <= set(EventKind)


@pytest.mark.parametrize(("framework", "function"), API)
def test_every_public_name_stands_in_the_reference(framework: str, function: str) -> None:
    pages = [f"{framework}.md", "layer-balance.md"]
    pages += ["pytorch-model.md", "pytorch-learning-rate.md"] if framework == "pytorch" else []
    assert any(f"edl.{function}" in TEXTS[REFERENCE / page] for page in pages)


CALLS = [name for kind in (Job, Cluster) for name in vars(kind) if name[0] != "_"]


@pytest.mark.parametrize("call", sorted({*CALLS} - {"name", "uid"}))
def test_every_call_of_the_client_stands_in_the_api(call: str) -> None:
    assert call == "close" or re.search(rf"`{call}\(", TEXTS[REFERENCE / "client.md"])


@pytest.mark.parametrize("public", edl.data.__all__)
def test_every_source_stands_in_the_data_page(public: str) -> None:
    is_source = inspect.isfunction(getattr(edl.data, public))
    assert not is_source or f"edl.data.{public}" in TEXTS[GUIDES / "data.md"]


def test_no_page_names_a_source_that_does_not_exist() -> None:
    assert set(re.findall(r"\bedl\.data\.(\w+)\(", ALL)) <= set(edl.data.__all__)


def test_the_snippet_of_the_data_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    Path("corpus/a.txt").write_text("one\ntwo\n")
    Path("train-0.tfrecord").write_bytes(framed(b"41") + framed(b"42"))
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    np.save("x.npy", x)
    np.save("y.npy", y)
    pq.write_table(pa.table({"x": [0.5], "y": [1], "z": ["unread"]}), "rows-0.parquet")
    text = TEXTS[GUIDES / "data.md"]
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    exec(blocks[0], {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("2 records in 1 text file of 8 bytes, digest ")
    assert [line.split()[0] for line in shown[1:]] == ["2", "2", "3", "1", "2"]
    assert shown[1:3] == ["2 one", "2 41"]
    names: dict[str, Any] = {}
    exec(next(block for block in blocks if "def read(path, offset)" in block), names)
    for number, shard in enumerate(names["shards"]):
        Path(shard).write_bytes(gzip.compress(f"{number}\n{number + 10}\n".encode()))
    stream = names["stream"]
    assert [stream.parse(line) for line in stream.read(0, 1, 1, 9)] == [11]


def test_no_page_names_a_function_that_does_not_exist() -> None:
    called = set(re.findall(r"\bedl\.(\w+)\(", ALL))
    assert called <= {function for _, function in API} | {edl.run.__name__}


@pytest.mark.parametrize("patch", [patch.name for patch in horovod_wheel.patches()])
@pytest.mark.parametrize(
    "page", ["reference/horovod-patches.md", "adr/0005-patching-horovod-at-build-time.md"]
)
def test_every_patch_of_horovod_is_explained(patch: str, page: str) -> None:
    assert f"`{patch}`" in TEXTS[DOCS / page]


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", TEXTS[README], flags=re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_every_decision_is_listed_and_fits_on_a_page() -> None:
    folder = DOCS / "adr"
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


@pytest.mark.parametrize("script", HOROVOD_EXAMPLES, ids=lambda script: script.stem)
def test_a_horovod_script_differs_in_one_line(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    code = text.replace(ast.get_docstring(ast.parse(text), clean=False) or "", "")
    (changed,) = (line for line in code.splitlines() if re.search(r"\bedl\b", line))
    assert re.match(r"import edl\.\S+ as hvd  # \(edl\) was: import horovod\.", changed)
    assert f"| `{script.name}` |" in TEXTS[GUIDES / "horovod-scripts.md"]
