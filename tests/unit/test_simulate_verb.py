"""`edl simulate`: what it prints, and the sentence for each thing that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edl.cli.main import invoke

SRTF = "benchmarks.published.srtf:Srtf"  # named as a user names his own
Captured = pytest.CaptureFixture[str]
TRACE = "name,time_s,slots,duration_s\na,0,4,100\nb,10,4,50\n"


def said(words: str, capsys: Captured) -> str:
    assert invoke(["simulate", *words.split()]) == 0
    return capsys.readouterr().out


def runs(words: str, capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(f"{words} --json", capsys).splitlines()]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_list_names_the_columns_and_policies(capsys: Captured) -> None:
    shown = said("--list", capsys)
    for word in ("duration_s", "tiresias", "max_min"):
        assert word in shown


def test_a_trace(trace: Path, capsys: Captured) -> None:
    # 4 slots: a ends at 30 + 100; b then pays 30, too, and ends at 130 + 80.
    (run,) = runs(f"--trace {trace} --nodes 1 --history", capsys)
    assert [job["end_s"] for job in run["jobs"]] == pytest.approx([130, 210])
    assert run["jobs"][1]["history"][0]["reason"] == "has 4 slots: submitted 120 s ago"
    # SRTF, free resizes: b preempts a at 10 (90 s remain) and ends at 60, a at 150.
    words = f"--trace {trace} --nodes 1 --policy fifo,{SRTF} --resize-cost 0"
    fifo, srtf = runs(words, capsys)
    assert [job["end_s"] for job in srtf["jobs"]] == pytest.approx([150, 60])
    assert (fifo["mean_jct_s"], srtf["mean_jct_s"]) == pytest.approx((120, 100))


def test_a_table_with_a_row_for_each_run(trace: Path, capsys: Captured) -> None:
    shown = said(f"--trace {trace} --nodes 1 --policy fifo,{SRTF} --resize-cost 0", capsys)
    words = [line.split() for line in shown.splitlines()]
    rows = [of[:3] for of in words if of[:1] in (["fifo"], [SRTF])]
    assert rows == [["fifo", "2", "120"], [SRTF, "2", "100"]]


def test_several_processes_say_the_same_as_one(trace: Path, capsys: Captured) -> None:
    words = f"--trace {trace} --nodes 1 --policy fifo,{SRTF}"
    assert runs(f"{words} --jobs 2", capsys) == runs(words, capsys)


def test_slots_and_queue_over_time(trace: Path, capsys: Captured) -> None:
    # b arrives at 10 s and waits for the 4 slots until a ends at 100 s.
    (run,) = runs(f"--trace {trace} --nodes 1 --resize-cost 0 --history", capsys)
    assert [tuple(level.values()) for level in run["over_time"]] == [
        (0, 4, 0),
        (10, 4, 1),
        (100, 4, 0),
        (150, 0, 0),
    ]


@pytest.mark.parametrize(("name", "begin"), [("runs.png", b"\x89PNG"), ("runs.svg", b"<?xml")])
def test_runs_as_a_figure(name: str, begin: bytes, trace: Path, capsys: Captured) -> None:
    path = trace.parent / name
    said(f"--trace {trace} --nodes 1 --policy fifo,{SRTF} --plot {path}", capsys)
    drawn = path.read_bytes()
    assert drawn.startswith(begin)
    if name.endswith(".svg"):
        for text in ("fifo, the trace", f"{SRTF}, the trace", "jobs that wait", "4 to 7"):
            assert f"<!-- {text} -->".encode() in drawn


def test_all_jobs_are_turned_away(trace: Path, capsys: Captured) -> None:
    trace.write_text("name,time_s,slots,duration_s\na,100,4,100\nb,110,4,50\n")
    words = f"--trace {trace} --nodes 1 --mtbf 1 --repair 1000000 --drop"
    (run,) = runs(words, capsys)
    assert (run["dropped"], run["resizes"]) == (2, 0)
    undefined = {name for name, value in run.items() if value is None}
    assert undefined >= {"mean_jct_s", "p50_jct_s", "worst_finish_time_fairness", "makespan_s"}
    shown = said(f"{words} --plot {trace.parent / 'runs.png'}", capsys)
    assert shown.splitlines()[-2].split() == ["fifo", "0/2", "-", "-", "-", "-", "-", "0"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "say which jobs: --trace FILE.csv; `edl simulate --list` has its columns"),
        ("--policy best", "there is no policy 'best'; use one of fifo, fifo_backfill, "),
        ("--nodes 1 --slots 2", "line 2: job a requests 4 slots, and the cluster has 2; give it"),
        ("--nodes 0", "--nodes, --slots and --jobs must be at least 1"),
        ("--seed -1", "--seed is -1; write 0 or more"),
        ("--interval -5", "the interval is -5 s"),
        ("--resize-cost -5", "'-5' has a time that is negative"),
        ("--interference 2", "the interference is 2; give 0 to below 1"),
        ("--mtbf 0", "--mtbf and --repair must be more than 0 seconds"),
        ("--mtbf inf", "--mtbf and --repair must be more than 0 seconds, and finite"),
        ("--mtbf 60 --repair inf", "--mtbf and --repair must be more than 0 seconds, and"),
        ("--repair 5", "--repair is for --mtbf; give both or neither"),
        ("--history", "--history is for --json; give both or neither"),
        ("--plot runs.pdf", "--plot runs.pdf: the name must end with .png or .svg"),
        (
            "--plot a.svg --policy fifo,edl,jsa,jsa_max,jsa_min,max_min,priority",
            "--plot shows at most 6 runs, not 7; choose fewer with --policy",
        ),
        ("--trace none.csv", "the trace none.csv cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: str, text: str, trace: Path, capsys: Captured
) -> None:
    jobs = ["--trace", str(trace)] if words and "--trace" not in words else []
    assert invoke(["simulate", *jobs, *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("edl: ")
    assert text in line


def test_a_trace_that_is_wrong_is_named_with_the_line(trace: Path, capsys: Captured) -> None:
    trace.write_text(f"{TRACE}c,-1,4,50\n")
    assert invoke(["simulate", "--trace", str(trace)]) == 2
    assert "trace.csv, line 4: time_s is -1; it must be 0 or more" in capsys.readouterr().err
    trace.write_text(f"{TRACE}c,1,40,50\n")
    assert invoke(["simulate", "--trace", str(trace), "--nodes", "2"]) == 2
    assert "line 4: job c requests 40 slots, and the cluster has 8" in capsys.readouterr().err
