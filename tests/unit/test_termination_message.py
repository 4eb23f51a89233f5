"""Which line of a dead process's output is shown."""

from __future__ import annotations

import pytest

from edl.host.output import AFTER, FOR_TORCHRUN, best, is_noise, is_of_horovod

TRACEBACK = """\
step 4
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    fail()
  File "train.py", line 3, in fail
    raise ValueError("no such label: 7")
ValueError: no such label: 7
"""
IGNORED = """\
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "pool.py", line 268, in __del__
    self._change_notifier.put(None)
OSError: [Errno 9] Bad file descriptor
"""
AT_EXIT = """\
Exception ignored in atexit callback: <bound method Worker.close of <edl.worker.worker.Worker>>
Traceback (most recent call last):
  File "process.py", line 217, in <lambda>
SystemExit: 0
"""
CHAINED = """\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
KeyError: 'w'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
RuntimeError: Error(s) in loading state_dict for Net:
\tsize mismatch for w: copying a param with shape torch.Size([3])
"""
NOISE = [
    "",
    "   ",
    "Epoch 3:  45%|████▌     | 45/100 [00:03<00:04, 12.01it/s]",
    "12/12 ━━━━━━━━━━━━━━━━━━━━ 0s 8ms/step - loss: 0.5",
    "12/12 [==============================] - 0s 8ms/step",
    "[2026-11-21 19:21:26.287211: W /tmp/horovod/common/operations.cc:597] a stall",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795288895.829434 9367 cpu_feature_guard.cc:227] This TensorFlow binary is",
    "W1121 19:21:26.287211 9367 pair.cc:10] closed",
    "2026-11-21 19:21:26.287211: I tensorflow/core/util/port.cc:153] oneDNN custom operations",
    "2026-11-21 19:21:26.287211: W tensorflow/core/framework/op_kernel.cc:1844] OP_REQUIRES",
    "WARNING:tensorflow:5 out of the last 5 calls",
    "WARNING:edl.job.daemon:coordination is interrupted",
    "[W1121 19:21:26.287211 socket.cpp:697] [c10d] The client socket has failed",
    "[rank0]:[W1121 19:21:26.287211 ProcessGroup.cpp:1] destroy_process_group() was not called",
    "/usr/lib/python3/x.py:7: UserWarning: lr_scheduler.step() before optimizer.step()",
    "  warnings.warn('semaphores')",
    "resource_tracker: There appear to be 4 leaked semaphore objects",
]


@pytest.mark.parametrize("line", NOISE)
def test_noise_is_never_shown(line: str) -> None:
    assert best(["the disk is full", line]) == "the disk is full"


@pytest.mark.parametrize(
    "line",
    [
        "edl: step 4: the gradient of w was computed twice",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "F1121 19:21:26.287211 9367 pair.cc:10] check failed",
        "accuracy 45% after 3 epochs",
        "not yet",
    ],
)
def test_a_line_of_weight_is_shown(line: str) -> None:
    assert not is_noise(line)
    assert best(["before", line, "", *NOISE]) == line


def test_the_end_of_a_traceback_is_the_best_line() -> None:
    after = ["w1 closes its files", "WARNING:edl: coordination is interrupted", ""]
    for more in ([], after, IGNORED.splitlines(), AT_EXIT.splitlines()):
        assert best([*TRACEBACK.splitlines(), *more]) == "ValueError: no such label: 7 (train.py:3)"
    assert best(CHAINED.splitlines()) == (
        "RuntimeError: Error(s) in loading state_dict for Net: (train.py:9)"
    )


def test_the_error_of_a_loaders_process_is_the_one_in_it() -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "ValueError: Caught ValueError in DataLoader worker process 1.",
        "Original Traceback (most recent call last):",
        '  File "data.py", line 3, in __getitem__',
        "ValueError: bad sample 137",
        "",
    )
    assert best(lines) == "ValueError: bad sample 137 (data.py:3)"


@pytest.mark.parametrize(
    "error",
    [
        "KeyError: 'LOCAL_RANK'",
        "ValueError: Error initializing: environment variable RANK expected, but not set",
    ],
)
def test_a_script_for_torchrun_is_told_so(error: str) -> None:
    frames = [
        '  File "/home/a/ddp.py", line 2, in <module>',
        '  File "/v/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 269, in _x',
        '  File "<frozen os>", line 679, in __getitem__',
    ]
    line = best(["Traceback (most recent call last):", *frames, error])
    assert line == f"{error} (ddp.py:2); {FOR_TORCHRUN}"


def test_after_an_error_that_was_only_logged_the_script_went_on() -> None:
    later = [f"step {number}" for number in range(AFTER + 1)]
    assert best([*TRACEBACK.splitlines(), *later]) == later[-1]


def test_an_ignored_exception_is_no_reason() -> None:
    assert best(["loss is nan", *IGNORED.splitlines(), *AT_EXIT.splitlines()]) == "loss is nan"


def test_colours_are_not_part_of_it() -> None:
    assert best(["\x1b[31mloss is nan\x1b[0m"]) == "loss is nan"


def test_nothing_to_show() -> None:
    assert best([]) == best(NOISE) == ""


def test_which_lines_an_agent_leaves_out() -> None:
    error = "/build/horovod-0.28.1/horovod/common/operations.cc:597] [1]: Horovod background loop"
    assert is_of_horovod(f"[2026-11-21 19:21:26.287211: E {error} uncaught exception: [/pair.cc:1]")
    assert not is_of_horovod(f"[2026-11-21 19:21:26.287211: D {error}: somebody has asked for it")
    assert not is_of_horovod("loss 0.5 with horovod/common")
