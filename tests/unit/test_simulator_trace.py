"""Jobs from a CSV file: what the columns mean, and the sentence for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import nodes, run

from edl.cluster.policies.simple import Fifo
from edl.errors import UsageError
from edl.simulator.workload import TimedWork, parse_trace, read_trace


def lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("|")]


def test_a_job_of_known_duration() -> None:
    (job,) = parse_trace(lines("slots,name,time_s,duration_s| 4 , a ,1.5,100"), "t.csv", 64)
    assert (job.name, job.arrival_s, job.requested_slots) == ("a", 1.5, 4)
    assert (job.min_slots, job.max_slots) == (4, 4)  # rigid, if nothing is said
    assert run(Fifo(), [job], nodes(4))["a"].end_s == pytest.approx(101.5)


def test_more_slots_by_amdahls_law() -> None:
    text = "name,time_s,slots,duration_s,min_slots,max_slots,parallel_fraction|a,0,2,100,1,8,0.8"
    (job,) = parse_trace(lines(text), "t.csv", 64)
    assert (job.min_slots, job.max_slots) == (1, 8)
    # T(k) = 0.2 + 0.8 / k is 1, 0.6, 0.4 with 1, 2, 4 slots; 100 s with 2.
    work = TimedWork(100, 2, 0.8)
    assert [work.whole_s(k) for k in (1, 2, 4)] == pytest.approx([1000 / 6, 100, 400 / 6])
    model = work.model(0, 0.25)
    assert model.steps_left(1) * model.step_s((2, 2), 1) == pytest.approx(0.75 * 400 / 6)
    # It measures that itself, with a quarter of its batch a slot.
    step, noise_scale = work.observed((2, 2), 1, 0)
    assert (step.workers, step.hosts, step.batch, noise_scale) == (4, 2, 0.25, None)
    assert step.step_s == step.compute_s == pytest.approx(400 / 6)


def test_weights() -> None:
    text = "name,time_s,slots,duration_s,weight|a,0,1,1,2.5|b,0,1,1,"
    assert [job.weight for job in parse_trace(lines(text), "t.csv", 64)] == [2.5, 1]


GOOD = "name,time_s,slots,duration_s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,slots,duration_s|a,1,1", "line 1: there is no column time_s; columns are name, tim"),
        ("name,time_s,slots|a,1,1", "line 1: there is no column duration_s"),
        ("", "line 1: there is no column name"),
        (f"{GOOD},colour|a,0,1,1,red", "line 1: there is no use for column 'colour'"),
        (GOOD, "t.csv has no jobs"),
        (f"{GOOD}|a,0,1,1|b,-3,1,1", "line 3: time_s is -3; it must be 0 or more"),
        (f"{GOOD}|a,soon,1,1", "line 2: time_s is 'soon'; write a number"),
        (f"{GOOD}|a,,1,1", "line 2: time_s is ''; write a number"),
        (f"{GOOD}|a,0,1", "line 2: duration_s is ''; write a number"),
        (f"{GOOD}|a,0,1,1,1", "line 2: it has more cells than there are columns"),
        (f"{GOOD}|,0,1,1", "line 2: the job has no name"),
        (f"{GOOD}|a,0,1.5,1", "line 2: slots is 1.5; write a whole number, 1 or more"),
        (f"{GOOD}|a,0,0,1", "line 2: slots is 0; write a whole number"),
        (f"{GOOD}|a,0,1,0", "line 2: duration_s is 0; a job takes some time"),
        (f"{GOOD}|a,0,1,nan", "line 2: duration_s is nan; it must be 0 or more"),
        (f"{GOOD}|a,0,65,1", "line 2: job a requests 65 slots, and the cluster has 64; give it f"),
        (f"{GOOD}|a,0,1,1||b,0,1,1|a,0,1,1", "line 5: job a is on line 2, too; names must differ"),
        (f"{GOOD},min_slots|a,0,2,1,3", "line 2: slots is 2; it must lie between min_slots, 3, an"),
        (f"{GOOD},max_slots|a,0,2,1,1", "line 2: slots is 2; it must lie between min_slots, 2, an"),
        (f"{GOOD},parallel_fraction|a,0,2,1,2", "line 2: parallel_fraction is 2; it must be 0 to"),
        (f"{GOOD},weight|a,0,2,1,0", "line 2: weight is 0; it must be more"),
        (f"{GOOD},application|a,0,1,1,bert", "line 1: there is no use for column 'application'"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_trace(lines(text), "t.csv", 64)
    assert said in str(caught.value)
    assert str(caught.value).startswith("t.csv")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.csv cannot be read: No such file"):
        read_trace(tmp_path / "none.csv", 64)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"binary.csv is no CSV file"):
        read_trace(tmp_path / "binary.csv", 64)
    (tmp_path / "good.csv").write_bytes(b"\xef\xbb\xbf" + f"{GOOD}\r\na,0,1,1\r\n".encode())
    assert [job.name for job in read_trace(tmp_path / "good.csv", 64)] == ["a"]
