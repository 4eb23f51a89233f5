"""`edl simulate`: what it prints, and the sentence for each thing that is wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edl.cli.main import invoke

Captured = pytest.CaptureFixture[str]
TRACE = "name,time_s,slots,duration_s\na,0,4,100\nb,10,4,50\n"


def said(words: str, capsys: Captured) -> str:
    """Return what a command that must succeed prints."""
    assert invoke(["simulate", *words.split()]) == 0
    return capsys.readouterr().out


def runs(words: str, capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(f"{words} --json", capsys).splitlines()]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_list_names_workloads_and_policies(capsys: Captured) -> None:
    shown = said("--list", capsys)
    for word in ("pollux", "realistic", "duration_s", "tiresias", "optimus", "max_min"):
        assert word in shown


def test_a_published_workload_as_json(capsys: Captured) -> None:
    (run,) = runs("pollux --load 0.5 --workload 6 --policy fifo_backfill", capsys)
    assert (run["policy"], run["load"], run["workload"]) == ("fifo_backfill", "0.5", 6)
    assert len(run["jobs"]) == 80
    mean = sum(job["jct_s"] for job in run["jobs"]) / 80
    assert run["mean_jct_s"] == pytest.approx(mean)
    assert "history" not in run["jobs"][0]


def test_a_trace(trace: Path, capsys: Captured) -> None:
    # 4 slots: a ends at 30 + 100; b then pays 30, too, and ends at 130 + 80.
    (run,) = runs(f"--trace {trace} --nodes 1 --history", capsys)
    assert [job["end_s"] for job in run["jobs"]] == pytest.approx([130, 210])
    assert run["jobs"][1]["history"][0]["reason"] == "has 4 slots: submitted 120 s ago"
    # SRTF, free resizes: b preempts a at 10 (90 s remain) and ends at 60, a at 150.
    words = f"--trace {trace} --nodes 1 --policy fifo,srtf --resize-cost 0"
    fifo, srtf = runs(words, capsys)
    assert [job["end_s"] for job in srtf["jobs"]] == pytest.approx([150, 60])
    assert (fifo["mean_jct_s"], srtf["mean_jct_s"]) == pytest.approx((120, 100))


def test_a_table_with_a_row_for_each_run(trace: Path, capsys: Captured) -> None:
    shown = said(f"--trace {trace} --nodes 1 --policy fifo,srtf --resize-cost 0", capsys)
    words = [line.split() for line in shown.splitlines()]
    rows = [of[:3] for of in words if of[:1] in (["fifo"], ["srtf"])]
    assert rows == [["fifo", "2", "120"], ["srtf", "2", "100"]]


def test_jobs_drawn_by_seed(capsys: Captured) -> None:
    words = "jsa --arrivals low,0.1 --seed 0..1 --policy jsa,jsa_max"
    found = runs(words, capsys)
    assert [(run["policy"], run["arrivals"], run["seed"]) for run in found] == [
        (policy, arrivals, seed)
        for policy in ("jsa", "jsa_max")
        for arrivals in ("low", "0.1")
        for seed in (0, 1)
    ]
    assert (found[0]["nodes"], found[0]["slots"], found[0]["interval_s"]) == (10, 4, 600)
    assert found[0]["mean_jct_s"] < found[4]["mean_jct_s"]
    shown = said("jsa --arrivals high --policy jsa_max --drop", capsys)
    assert ["policy", "arrivals", "seed"] in [line.split()[:3] for line in shown.splitlines()]
    ended, offered = re.findall(r"(\d+)/(\d+)", shown)[0]
    assert 0 < int(ended) < int(offered)


def test_a_mix_of_applications(capsys: Captured) -> None:
    words = "mix --mix ncf=3,cifar10 --arrivals 0.2 --seed 0..1"
    first, second = runs(f"{words} --policy fifo_backfill", capsys)
    assert [(run["arrivals"], run["seed"]) for run in (first, second)] == [("0.2", 0), ("0.2", 1)]
    kinds = Counter(job["kind"] for run in (first, second) for job in run["jobs"])
    # 0.2 a minute for 8 hours is 96, twice: 192, three quarters of them ncf.
    assert kinds.keys() == {"ncf", "cifar10"}
    assert kinds.total() == pytest.approx(192, abs=4 * 192**0.5)
    assert kinds["ncf"] / kinds.total() == pytest.approx(0.75, abs=0.12)


def test_jobs_with_weights(capsys: Captured) -> None:
    found = runs("virtualflow --policy virtualflow,priority", capsys)
    assert [len(run["jobs"]) for run in found] == [20, 20]
    assert found[0]["mean_jct_s"] < found[1]["mean_jct_s"]


def test_several_processes_say_the_same_as_one(trace: Path, capsys: Captured) -> None:
    words = f"--trace {trace} --nodes 1 --policy fifo,srtf"
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
    said(f"--trace {trace} --nodes 1 --policy fifo,srtf --plot {path}", capsys)
    drawn = path.read_bytes()
    assert drawn.startswith(begin)
    if name.endswith(".svg"):
        for text in (b"fifo, the trace", b"srtf, the trace", b"jobs that wait", b"4 to 7"):
            assert b"<!-- %s -->" % text in drawn


def test_all_jobs_are_turned_away(trace: Path, capsys: Captured) -> None:
    trace.write_text("name,time_s,slots,duration_s\na,100,4,100\nb,110,4,50\n")
    words = f"--trace {trace} --nodes 1 --mtbf 1 --repair 1000000 --drop"
    (run,) = runs(words, capsys)
    assert (run["dropped"], run["resizes"]) == (2, 0)
    undefined = {name for name, value in run.items() if value is None}
    assert undefined >= {"mean_jct_s", "p50_jct_s", "worst_finish_time_fairness", "makespan_s"}
    shown = said(f"{words} --plot {trace.parent / 'runs.png'}", capsys)
    assert shown.splitlines()[-2].split() == ["fifo", "0/2", "-", "-", "-", "-", "-", "0"]


def test_beside_the_published_answers(capsys: Captured) -> None:
    (run,) = runs("pollux --load 0.5 --workload 6 --policy tiresias --compare", capsys)
    assert run["published"] == {"mean_jct_s": run["mean_jct_s"], "matches": 80, "differing": []}
    shown = said("pollux --load 0.5 --workload 6,7 --policy tiresias --compare", capsys)
    assert "80/80" in shown
    assert "160/160" in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "say which jobs: `edl simulate pollux`, or --trace FILE.csv"),
        ("helios", "say which jobs"),
        ("pollux --policy best", "there is no policy 'best'; use one of fifo, fifo_backfill, "),
        ("pollux --load 3", "there is no load '3'; use 0.5, 1.0, 1.5, 2.0, realistic"),
        ("pollux --load \u00b2", "there is no load '\u00b2'; use 0.5, 1.0, "),
        ("pollux --workload 9", "there is no workload '9'; write 1 to 8"),
        ("pollux --workload 3..1", "there is no workload '3..1'"),
        ("pollux --workload all", "there is no workload 'all'"),
        ("pollux --slots 8", "the published measurements have nodes of 1 to 4 slots, not of 8"),
        ("pollux --nodes 2", "slots, and the cluster has 8 on 2 nodes; give it more nodes"),
        ("pollux --nodes 0", "--nodes, --slots and --jobs must be at least 1"),
        ("pollux --seed -1", "--seed is -1; write 0 or more"),
        ("pollux --interval -5", "the interval is -5 s"),
        ("pollux --resize-cost -5", "'-5' has a time that is negative"),
        ("pollux --interference 2", "the interference is 2; give 0 to below 1"),
        ("pollux --mtbf 0", "--mtbf and --repair must be more than 0 seconds"),
        ("pollux --mtbf inf", "--mtbf and --repair must be more than 0 seconds, and finite"),
        ("pollux --mtbf 60 --repair inf", "--mtbf and --repair must be more than 0 seconds, and"),
        ("pollux --trace x.csv", "--trace brings its own jobs: leave pollux and --compare out"),
        ("virtualflow --trace x.csv", "leave virtualflow and --compare out"),
        ("jsa --compare", "--compare is for the published answers of pollux; leave it out"),
        ("jsa --arrivals often", "there are no arrivals 'often'; use low, high, mixed, bursts, "),
        ("jsa --seed x", "there is no seed 'x'; write numbers, like 6"),
        ("pollux --plot runs.svg", "--plot shows at most 6 runs, not 8; choose fewer with "),
        ("virtualflow --plot runs.pdf", "--plot runs.pdf: the name must end with .png or .svg"),
        ("pollux --seed 1,2", "several seeds are for jsa and mix; say one"),
        ("jsa --mix bert", "--mix is for mix; leave it out"),
        ("virtualflow --arrivals 5", "--arrivals is for jsa and mix; leave it out"),
        ("virtualflow --load 2.0", "--load is for pollux; leave it out"),
        ("jsa --workload 3", "--workload is for pollux; leave it out"),
        ("--trace x.csv --load 1.0", "--load is for pollux; leave it out"),
        ("jsa --repair 5", "--repair is for --mtbf; give both or neither"),
        ("jsa --history", "--history is for --json; give both or neither"),
        ("mix --mix resnet", "there is no application 'resnet'; measured are bert, cifar10, "),
        ("mix --mix bert=0", "'bert=0' is no part of a mix; write more than 0, bert=2"),
        ("mix --mix bert=x", "'bert=x' is no part of a mix"),
        ("mix --arrivals 0.00001", "no job arrives in 8 hours at 0.00001 a minute"),
        ("pollux --compare", "nothing is published for fifo at load 1.0"),
        ("pollux --compare --policy tiresias --interval 30", "--compare: the published answ"),
        ("--trace none.csv", "the trace none.csv cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: str, text: str, capsys: Captured) -> None:
    assert invoke(["simulate", *words.split()]) == 2
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
