"""Streams: each sample counts once, whoever comes, leaves or dies, and in loader processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenario import last_line_of, scenario

from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SLOW = Throttle(0.1)


@pytest.mark.parametrize(
    ("stream", "num_workers"),
    [
        pytest.param("shards", 0, id="shards"),
        pytest.param("stateful", 2, id="stateful"),
    ],
)
@pytest.mark.long  # property/test_streams.py in `make test`
def test_a_join_a_leave_and_a_death(
    stream: str, num_workers: int, tmp_path: Path, zk_hosts: str
) -> None:
    settings = {"samples": 730, "num_workers": num_workers, "throttled": SLOW}
    more = ("--stream", stream, "--exchange", "2")
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, more=more, **settings) as job:
        job.join_leave_and_die()
        job.prove(workers=2)


@pytest.mark.long  # `make test` trains the digits alone
def test_the_example_alone(tmp_path: Path) -> None:
    last = last_line_of("torch_stream.py", "--data", str(tmp_path))
    found = re.fullmatch(r"accuracy (\S+) epochs 10 steps (\d+)", last)
    assert found, last
    assert float(found[1]) > 0.9
    assert int(found[2]) == 10 * 47, "1,497 digits, 32 in a batch, across the ends of files"
