"""Sources of data in real processes: TensorFlow's own files, many processes, a whole job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from paths import SCRIPTS
from tfrecords import framed

import edl.data
from edl.errors import DataError
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = pytest.mark.integration

TIMEOUT_S = 120.0


@contextlib.contextmanager
def python(*arguments: str, cache: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process that keeps its indexes in ``cache``; kill it at the end of the block."""
    process = forked.Python(
        "",
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


# --- TensorFlow's files ---


def test_tensorflow_and_edl_read_each_others_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    records = [b"", b"one", bytes(range(256)) * 200, b"last"]
    (tmp_path / "ours").write_bytes(b"".join(map(framed, records)))
    script = [SCRIPTS / "tfrecord_files.py", tmp_path, *(record.hex() for record in records)]
    done = forked.python("tensorflow", script, TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [record.hex() for record in records], "as TensorFlow reads"
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / "ours").read_bytes()
    for policy in ("error", "skip"):
        assert list(edl.data.tfrecord(tmp_path / "theirs", on_error=policy)) == records
    for name in ("gzip", "zlib"):
        with pytest.raises(DataError, match=rf"{name} is compressed \({name}\)"):
            edl.data.tfrecord(tmp_path / name)


# --- many processes ---

MAKING = """
import logging, os, sys, time
from pathlib import Path
from edl.data.files import Index, index_of

class Waiting(logging.Handler):
    "Touches a file when this process did not get the lock."
    def emit(self, record):
        if "not acquired" in record.getMessage():
            Path(f"{sys.argv[1]}.{os.getpid()}").touch()

logging.getLogger("filelock").addHandler(Waiting())
logging.getLogger("filelock").setLevel(logging.DEBUG)

def wait_for_the_others():
    deadline = time.monotonic() + 60
    while not all(map(waits, others)):
        assert time.monotonic() < deadline, "the others do not come"
        time.sleep(0.01)

def waits(pid):
    return int(pid) == os.getpid() or Path(f"{sys.argv[1]}.{pid}").exists()

def make(path, size):
    print("making", flush=True)
    ENDS_OR_WAITS
    return Index(facts={"size": size})

print("ready", flush=True)
others = sys.stdin.read().split()
print(index_of(sys.argv[1], "kind", make).index.facts["size"], flush=True)
"""
WAITS = MAKING.replace("ENDS_OR_WAITS", "wait_for_the_others()")
ENDS = MAKING.replace("ENDS_OR_WAITS", "os.kill(os.getpid(), 9)")


def test_many_processes_make_an_index_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(python("-c", WAITS, str(path), cache=tmp_path)) for _ in range(4)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        printed: list[str] = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(" ".join(str(each.pid) for each in processes))
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            printed += process.stdout.read().split()
            assert process.wait(TIMEOUT_S) == 0
    assert sorted(printed) == ["7", "7", "7", "7", "making"]


def test_a_process_that_dies_while_it_makes_an_index_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    for script, code, rest in ((ENDS, -signal.SIGKILL, ""), (WAITS, 0, "7\n")):
        began = time.monotonic()
        with python("-c", script, str(path), cache=tmp_path) as process:
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == code
        assert output == f"ready\nmaking\n{rest}"
        assert time.monotonic() - began < TIMEOUT_S / 2


# --- a job ---

COUNTING = SCRIPTS / "counting.py"
NUMBERS, EPOCHS = 400, 3
DAMAGED, LOST = 57, 390  # the number in a damaged record; from this one on the file is cut


def write_records(folder: Path) -> dict[str, dict[str, int]]:
    """Numbers 0 to NUMBERS - 1 in two files; the damage, by name of the file."""
    first = [framed(str(number).encode()) for number in range(200)]
    second = [framed(str(number).encode()) for number in range(200, NUMBERS)]
    offset = len(b"".join(first[:DAMAGED]))
    content = bytearray(b"".join(first))
    content[offset + 12] ^= 1  # the first digit
    (folder / "a.tfrecord").write_bytes(content)
    kept = b"".join(second[: LOST - 200])
    (folder / "b.tfrecord").write_bytes(kept + second[LOST - 200][:10])
    return {
        "a.tfrecord": {"offset": offset, "bytes": len(first[DAMAGED])},
        "b.tfrecord": {"offset": len(kept), "bytes": 10},
    }


@pytest.mark.slow
@pytest.mark.long  # `make test` has it without a job
def test_a_job_trains_what_is_sound_exactly_once_and_logs_the_rest(
    tmp_path: Path, zk_hosts: str
) -> None:
    """2 workers with loader processes, then 3; two damaged files, logged once."""
    damage = write_records(tmp_path)
    script = [COUNTING, "--out", str(tmp_path), "--num-workers", "2"]
    script += ["--tfrecord", str(tmp_path / "*.tfrecord"), "--samples", str(NUMBERS)]
    script += ["--epochs", str(EPOCHS)]
    slow = Throttle(0.3, 70, 5.0)  # it has 100 to 150 steps
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=slow) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        events = job.events("data_skipped")
        story = job.describe("the counts are wrong")

    skipped = {Path(one["file"]).name: {k: one[k] for k in ("offset", "bytes")} for one in events}
    assert skipped == damage
    assert len(events) == len(damage)
    assert "data does not match" in events[0]["reason"]
    assert "the file ends within a record" in events[1]["reason"]

    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    lost = 1 + NUMBERS - LOST
    assert len(reports) == 3, story
    for report in reports:
        assert report["wrong"] == [], story
        assert report["counts"] == {"0": lost, str(EPOCHS): NUMBERS - lost}, story
    assert len({report["w_sha256"] for report in reports}) == 1, story


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_record_ends_a_job_with_its_sentence(tmp_path: Path, num_workers: int) -> None:
    """Also when a loader process has met it: no traceback."""
    damage = write_records(tmp_path)["a.tfrecord"]
    code = f"""
import edl.torch as edl
edl.init()
data = edl.data.tfrecord("a.tfrecord", parse=int)
loader = edl.DataLoader(data, batch_size=8, num_workers={num_workers})
for _ in loader.epochs(1):
    for _ in loader:
        edl.notify_batch_end()
"""
    done = forked.python(
        "torch",
        ["-c", code],
        TIMEOUT_S,
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"edl: {tmp_path}/a.tfrecord: the record at byte ")
    assert f"at byte {damage['offset']} is damaged" in done.stderr
    assert done.stderr.count("\n") == 1
