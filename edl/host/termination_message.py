"""Find the line of a dead process's output that best says why the process died.

Mostly the last one. But after an error Python, libraries and progress bars may write more: so the
end of the last traceback is chosen if at most :data:`AFTER` (10) meaningful lines follow it, with
the innermost line of the user's code; otherwise the last line that is not noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

KEPT = 400  # lines of a process's output that are looked at
AFTER = 10  # lines of weight after a traceback: then the script went on
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last)"
_EDL = re.escape(__file__.rpartition("/host/")[0])
_FRAME = re.compile(  # of the script, not of a library
    rf'File "(?!.*/(?:site|dist)-packages/|.*/lib/python3|{_EDL}/|<)([^"]+)", line (\d+)'
)
# What a script for torchrun asks for first; edl sets no such variable.
_OF_TORCHRUN = re.compile(
    r"environment variable (?:RANK|WORLD_SIZE|MASTER_\w+) expected"
    r"|^KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
)
FOR_TORCHRUN = (
    "the script is written for torchrun, whose variables edl does not set: make it elastic as "
    "docs/get-started/from-ddp.md says"
)
_IGNORED = ("Exception ignored in", "Error in atexit._run_exitfuncs")

# An error or a warning of Horovod's C++, with the path of its source: "[DATE TIME: E /...".
_OF_HOROVOD = re.compile(r"^\[\d{4}-\d\d-\d\d[ ][\d:.]+:?\s*[EWF]\b.*horovod/")
_NOISE = re.compile(
    r"""
    \d+%\s?\||━|\[=+[>.=]*\]|\d[\d.]*\s?(?:it/s|s/it|ms/step|s/step|s/epoch)   # progress bars
    |^\[\d{4}-\d\d-\d\d[ ][\d:.]+:?\s*[TDIWE]\b.*horovod/        # Horovod's own log
    |^\[[\d.]+\]:?[ ]?\[?[TDIWE]\b.*horovod                      # the same without the date
    |^[IWE]\d{4}\s[\d:.]+\s                                      # glog: [IWE]mmdd hh:mm:ss
    |^\d{4}-\d\d-\d\d\s[\d:.,]+:?\s[IWE]\s                       # TensorFlow's
    |^(?:WARNING|INFO|DEBUG):                                    # logging's plain format, absl
    |absl::InitializeLog
    |^\[(?:rank\d+\]:)?\[?[IW]\d{3,}\s                           # PyTorch's C++ warnings
    |^\[[IW]\s\S+\.cpp
    |:\d+:\s\w*Warning:|^\w*Warning:|^warnings\.warn\(           # Python's warnings
    |resource_tracker
    |^(?:During\shandling\sof\sthe\sabove|The\sabove\sexception\swas\sthe\sdirect)
    |^Fatal\sPython\serror:\s_enter_buffered_busy                # a thread still wrote at the end
    """,
    re.VERBOSE,
)


def best(lines: Iterable[str]) -> str:
    """Return the line of a process's output that best says why it ended; empty if none does."""
    weighty: list[str] = []
    error = None  # index in ``weighty`` of the end of the last traceback
    inside, ignored = False, False
    where = ""
    for coloured in lines:
        line = _COLOUR.sub("", coloured).rstrip()
        text = line.strip()
        if text.startswith(_IGNORED):
            inside, ignored = False, True
        elif text.removeprefix("Original ").startswith(_TRACEBACK):  # of a loader's process
            inside, where = True, ""
        elif inside and line[:1] in ("", " ", "\t"):
            if frame := _FRAME.match(text):
                where = f" ({frame[1].rpartition('/')[2]}:{frame[2]})"
        elif inside:
            if not ignored:
                error = len(weighty)
                cause = f"; {FOR_TORCHRUN}" if _OF_TORCHRUN.search(text) else ""
                weighty.append(f"{text}{where}{cause}")
            inside, ignored = False, False
        elif text and not is_noise(text):
            ignored = False
            if error is None or line == text:  # else it goes on with the error's message
                weighty.append(text)
    if error is not None and len(weighty) - error <= AFTER:
        return weighty[error]
    return weighty[-1] if weighty else ""


def is_of_horovod(line: str) -> bool:
    # Many when a ring breaks: an agent shows none, as the job's events say the same.
    return _OF_HOROVOD.search(line) is not None


def is_noise(text: str) -> bool:
    return _NOISE.search(text) is not None
