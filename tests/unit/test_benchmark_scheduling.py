"""The tables of benchmarks/results/scheduling.md: each count by hand, and all once in small."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import submitted

from benchmarks.page import fill
from benchmarks.published.runs import PublishedRun
from benchmarks.scheduling import __main__ as command
from benchmarks.scheduling import jsa, published, resizing, rivals, scope, synthetic
from benchmarks.scheduling.jobs import on_pollux, on_virtualflow
from benchmarks.scheduling.rivals import Standing, beside, worse
from benchmarks.scheduling.scope import FULL, QUICK
from benchmarks.scheduling.store import collected, key
from benchmarks.scheduling.summary import Summary, summary
from edl.simulator.results import JobResult, Result
from edl.simulator.runs import RunOutcome

ROOT = Path(__file__).parents[2]
EMPTY = Summary(100, 0, {}, 0.0, 1.0, 0, 0.0)
OURS = [replace(EMPTY, completed=count, jcts_s={"a": s}) for count, s in ((90, 600.0), (80, 660.0))]
THEIRS = [
    replace(EMPTY, completed=count, jcts_s={"a": s}) for count, s in ((45, 1800.0), (20, 1320.0))
]


def test_jobs_count_that_ended_within_eight_hours() -> None:
    jobs = [submitted(name, 0, 100) for name in "abc"]
    done = [
        JobResult(name, "", 0.0, 0.0, end_s, 1.0, dropped=dropped)
        for name, end_s, dropped in (("a", 600.0, False), ("b", 30000.0, False), ("c", 60.0, True))
    ]
    run = PublishedRun("fifo", on_virtualflow("fifo").rules, 1, 8, jobs=tuple(jobs))
    # a and b took 600 and 30,000 s; b ended after 28,800 s, c was turned away.
    found = summary(RunOutcome(run, Result(tuple(done), 9), 1.5))
    assert (found.offered, found.completed, found.mean_jct_s) == (3, 1, 15300.0)
    assert (found.p99_jct_s, found.makespan_s, found.took_s) == (29706.0, 30000.0, 1.5)
    assert (found.p90_fairness, found.unfair, found.most_resizes) == (0.0, 0.0, 0)
    assert Summary(**found.figures()) == found


def test_ratios_are_taken_seed_by_seed() -> None:
    assert jsa.ratios(True, OURS, THEIRS) == pytest.approx([2, 4])
    assert jsa.ratios(False, OURS, THEIRS) == pytest.approx([3, 2])
    assert jsa.said([2.0, 4.0], 2) == "3.00 (2.00 to 4.00)"
    assert jsa.said([2.0], 1) == "2.0"


def test_words_for_numbers() -> None:
    assert [published.percent(ratio) for ratio in (1.011, 1.0, 0.986)] == [
        "+1.1 %",
        "0.0 %",
        "−1.4 %",
    ]
    assert published.listed_numbers((1, 2, 3, 4)) == "1 to 4"
    assert published.listed_numbers((1, 2, 6)) == "1, 2, 6"


def test_where_a_policy_is_behind() -> None:
    ours, other = Standing(900.0, 5000.0, 1.5), Standing(1000.0, 4000.0, 1.5)
    assert beside(ours, other) == ["−10 %", "+25 %", "0 %"]
    assert worse(ours, other) == ["p99 +25.0 %"]
    assert worse(other, ours) == ["mean +11.1 %"]
    assert worse(ours, ours) == []


def test_a_block_of_a_page_is_written_anew() -> None:
    page = "# T\n\n<!-- a -->\nold\n<!-- end -->\n\nwords\n\n<!-- b -->\n<!-- end -->\n"
    filled = fill(page, {"a": "new"})
    assert filled == page.replace("old", "new")
    assert fill(filled, {"b": "two\nlines"}).endswith("<!-- b -->\ntwo\nlines\n<!-- end -->\n")
    with pytest.raises(AssertionError, match="no place for c"):
        fill(page, {"c": ""})


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    runs = [on_virtualflow("priority"), on_virtualflow("virtualflow")]
    told: list[str] = []
    first = collected(runs[:1], 1, tmp_path, told.append)
    both = collected([*runs, runs[0]], 1, tmp_path, told.append)
    assert told[0] == "1 runs, 0 of them done before"
    assert told[2] == "2 runs, 1 of them done before"
    assert told[3].startswith("1 of 1: virtualflow, virtualflow, ")
    assert both.keys() == {key(run) for run in runs}
    assert both[key(runs[0])] == first[key(runs[0])]


def test_a_run_at_the_published_cost_is_the_published_run() -> None:
    assert key(on_pollux("optimus", "1.0", 6)) == key(on_pollux("optimus", "1.0", 6, 60.0, 30.0))
    assert key(on_pollux("optimus", "1.0", 6)) != key(on_pollux("optimus", "1.0", 6, 60.0, 0.3))


@pytest.mark.parametrize("size", [QUICK, FULL])
def test_each_part_has_the_runs_that_it_shows(size: scope.Scope) -> None:
    class Recorded(dict[str, Summary]):
        def __missing__(self, name: str) -> Summary:
            raise AssertionError(f"{name} is shown and was not run")

    known = Recorded()
    for part in (jsa, resizing, rivals, synthetic):
        for run in part.runs(size):
            known[key(run)] = OURS[0]
        part.blocks(size, known)


@pytest.mark.long  # tests/README.md, Time
def test_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--done", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "tiresias | 0.5 | 3 | 80 | 1869.9 | 1869.9 | 0.0 % |  | 80 of 80 |" in captured.out
    assert "No job of Tiresias or Optimus ends in another second." in captured.out
    assert "`edl` is" in captured.out
    page = (ROOT / "benchmarks" / "results" / "scheduling.md").read_text(encoding="utf-8")
    places = set(re.findall(r"<!-- ([\w-]+) -->", page)) - {"end"}
    assert places == set(re.findall(r"^([a-z-]+)$", captured.out, re.MULTILINE))


def test_figures_and_the_place_of_our_own_policy(tmp_path: Path) -> None:
    small = replace(QUICK, elastic=("virtualflow",), fixed=())
    known = {key(run): OURS[0] for part in (resizing, rivals) for run in part.runs(small)}
    for run in rivals.runs(small):
        if run.policy == scope.OURS:
            known[key(run)] = THEIRS[0]
    told = rivals.blocks(small, known)
    assert "edl beside it: mean" in told["rivals-virtualflow"]
    assert "- VirtualFlow, 20, priority: mean +200.0 %" in told["rivals-behind"]
    resizing.draw(small, known, tmp_path)
    assert "edl, load 0.5" in (tmp_path / resizing.FIGURE).read_text(encoding="utf-8")
    rivals.draw(tmp_path)
    assert "virtualflow, virtualflow" in (tmp_path / rivals.FIGURE).read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--only", "none"]])
def test_what_cannot_be_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert "benchmarks.scheduling: error: " in capsys.readouterr().err
