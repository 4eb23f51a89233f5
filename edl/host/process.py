"""Hold the record of one start of one worker process, with how it ended and why.

An end is a *failure* if the process ended with an error, or without ever joining, by itself; not if
its launcher ended it, or it obeyed the leader that evicted it. A failure before the first step, or
within :data:`QUICKLY_KILLED_S` (killed) or :data:`QUICK_S` of it, makes no progress; more than
``max_restarts`` of these in a row disable the slot, or a script that fails in its third step would
be started forever.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from edl.errors import (
    AGAIN_EXIT,
    ALREADY_HERE_EXIT,
    NO_PROGRAM_EXIT,
    REFUSED_EXIT,
    AccessDenied,
    AgentExists,
    EdlError,
    RunEnded,
    UnknownJob,
    UsageError,
)
from edl.event_text import LAST_WORDS
from edl.job.run import HALTED_EXIT, UNSAVED_EXIT
from edl.job.snapshot import GONE, Snapshot, since
from edl.record import Record
from edl.records import Job, JobState, Stage

# ------------------------------------------------------------
# Exit codes: -n if signal n killed a process, else 0 to 255. A shell shows 128 + n for a kill by
# signal n, and ends with that itself if its last command was killed.


UNKNOWN_EXIT = -1000  # it ended, and only its parent could have learned how: it is gone, or did

# They kill a process that has an error, lacks memory or is told to end. A script seldom ends with
# 128 plus one of these by itself.
_DEADLY = (
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGTERM,
)


def exit_status(code: int) -> int:
    if code == UNKNOWN_EXIT:
        return 1
    return 128 - code if code < 0 else code


def how(code: int) -> str:
    if code == UNKNOWN_EXIT:
        return "ended (an earlier agent had started it, or others reaped it: how is not known)"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"


# ------------------------------------------------------------
# The ends of an agent. Its exit code tells a supervisor what became of it, without a question to
# ZooKeeper. 90 to 97 are free of shells (126 to 165), `sysexits.h` (64 to 78) and systemd (200 to
# 243). A script may still end with one of them, so that its failed job has the same code: the line
# of `--json` tells the two apart. `edl run` and `edl join` end with the code of the job.


INTERRUPTED = 130  # of a command that Ctrl-C ended before it had done anything


class AgentEnd(StrEnum):
    """The way in which an agent, the process of `edl run`, `edl join` or `edl agent`, has ended."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    HALTED = "halted"
    UNSAVED = "unsaved"
    LEFT = "left"
    PREEMPTED = "preempted"
    OVER = "over"
    NO_SUCH_JOB = "no_such_job"
    ALREADY_HERE = "already_here"
    REFUSED = "refused"
    ERROR = "error"


MEANINGS: Mapping[AgentEnd, str] = {
    AgentEnd.FINISHED: "the job has trained to its end",
    AgentEnd.FAILED: "the job has failed",
    AgentEnd.STOPPED: "the job was stopped",
    AgentEnd.HALTED: "the job was preempted (`edl preempt`), and is saved: `edl run --resume`",
    AgentEnd.UNSAVED: "the job was preempted, and its last steps were not saved in time",
    AgentEnd.LEFT: "the host was drained, or its workers placed on other hosts; the job goes on",
    AgentEnd.PREEMPTED: "the agent got a signal, and its host left; the job goes on",
    AgentEnd.OVER: "the run is over, or another one has taken its place: there is nothing to join",
    AgentEnd.NO_SUCH_JOB: "there is no job of this name",
    AgentEnd.ALREADY_HERE: "another agent of this host is alive; it has the workers",
    AgentEnd.REFUSED: "the command asked for something impossible; nothing was begun",
    AgentEnd.ERROR: "something else went wrong, such as a ZooKeeper that does not answer",
}

EXIT_CODES: Mapping[AgentEnd, int] = {
    AgentEnd.ERROR: 1,
    AgentEnd.REFUSED: 2,
    AgentEnd.STOPPED: 90,
    AgentEnd.LEFT: 91,
    AgentEnd.PREEMPTED: 92,
    AgentEnd.OVER: 93,
    AgentEnd.NO_SUCH_JOB: 94,
    AgentEnd.ALREADY_HERE: ALREADY_HERE_EXIT,
    AgentEnd.HALTED: HALTED_EXIT,
    AgentEnd.UNSAVED: UNSAVED_EXIT,
}

"""The exit code of `edl agent` for each end that has a code of its own."""

_FINAL = (
    AgentEnd.FINISHED,
    AgentEnd.FAILED,
    AgentEnd.STOPPED,
    AgentEnd.HALTED,
    AgentEnd.UNSAVED,
    AgentEnd.OVER,
    AgentEnd.REFUSED,
)


@dataclass(frozen=True)
class AgentResult(Record):
    """The result of `edl run`, `edl join` or `edl agent`, as `--json` prints it last."""

    job: Annotated[str | None, "name of the job; null: it was not known yet"] = None
    run: Annotated[
        str | None, "token of the start of the job that the agent belonged to; null: not known"
    ] = None
    host: Annotated[str | None, "name of this host in the job; null: it was not known yet"] = None
    end: Annotated[AgentEnd, "one of the ends above"] = AgentEnd.ERROR
    exit_code: Annotated[int, "exit code of this command"] = 1
    reason: Annotated[str, "why, in a sentence"] = ""
    step: Annotated[int, "complete steps of the job, as this agent read them last"] = 0


def end_of_job(job: Job) -> AgentEnd:
    if job.state is JobState.STOPPED and job.end_within_s:
        return AgentEnd.UNSAVED if job.exit_code == UNSAVED_EXIT else AgentEnd.HALTED
    return AgentEnd(job.state.value)


def end_of_error(error: EdlError) -> AgentEnd:
    # It is an UnknownJob, but the job exists; only its secret is not known here.
    if isinstance(error, AccessDenied):
        return AgentEnd.REFUSED
    kinds: tuple[tuple[type[EdlError], AgentEnd], ...] = (
        (UnknownJob, AgentEnd.NO_SUCH_JOB),
        (AgentExists, AgentEnd.ALREADY_HERE),
        (RunEnded, AgentEnd.OVER),
        (UsageError, AgentEnd.REFUSED),
    )
    return next((end for kind, end in kinds if isinstance(error, kind)), AgentEnd.ERROR)


def is_final(end: AgentEnd) -> bool:
    """Return whether another agent of the same run on the same host would end at once, too."""
    return end in _FINAL


def agent_exit_code(end: AgentEnd, of_job: int) -> int:
    return EXIT_CODES.get(end, of_job)


def run_exit_code(end: AgentEnd, of_job: int) -> int:
    """Return the exit code of `edl run` without `--or-join`."""
    # 91: `edl run ... && evaluate` evaluates only a job that was trained to its end.
    return EXIT_CODES[end] if end is AgentEnd.LEFT else of_job


# ------------------------------------------------------------
# Split a command line of Python as the interpreter does, without running or reading anything: to
# check that a script exists, and to run it in a process forked from a template (`template`).


TRANSPARENT = "edl.transparent"  # the module that runs an unchanged Horovod script
_PYTHON = re.compile(r"python[0-9.]*")
_WITH_VALUE = "WX"  # options of one letter whose value follows, in the same word or the next
_LONG_WITH_VALUE = ("--check-hash-based-pycs",)
_SHORT_OTHER = "hViqx?"  # print something and end, or go on at a prompt, or skip a line


class Main(StrEnum):
    """The kind of code that the interpreter runs as `__main__`."""

    SCRIPT = "script"  # a file, a directory or a zip archive
    MODULE = "module"  # python -m
    CODE = "code"  # python -c
    OTHER = "other"  # a prompt, standard input, `--help`


@dataclass(frozen=True)
class PythonCommand:
    program: str  # the interpreter, as it is written
    options: tuple[str, ...]  # of the interpreter
    main: Main
    target: str  # path, module or text of the code; empty for `Main.OTHER`
    arguments: tuple[str, ...]  # of that code; empty for `Main.OTHER`


def is_python(program: str) -> bool:
    return _PYTHON.fullmatch(program.rpartition("/")[2]) is not None


def parse_command(command: Sequence[str]) -> PythonCommand | None:
    """Return the parts of a command line of Python; None if it is empty or not one of Python."""
    if not command or not is_python(command[0]):
        return None
    program, *words = command
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            if word not in _LONG_WITH_VALUE:
                return _other(program, words)
            at += 2
            continue
        # The first letter that takes a value or ends the options, and the rest of its word.
        letter, value = "", ""
        for index, letter_ in enumerate(word[1:], 2):
            if letter_ in f"cm{_WITH_VALUE}{_SHORT_OTHER}":
                letter, value = letter_, word[index:]
                break
        if letter and letter in "cm":
            target = [value] if value else words[at + 1 : at + 2]
            rest = words[at + (1 if value else 2) :]
            main = Main.CODE if letter == "c" else Main.MODULE
            # `-uc CODE`: the letters before it are options, too.
            before = word[: word.index(letter)]
            options = (*words[:at], *([before] if before != "-" else []))
            return PythonCommand(program, options, main, "".join(target), tuple(rest))
        if letter and letter in _SHORT_OTHER:
            return _other(program, words)
        at += 2 if letter and not value else 1
    if at >= len(words) or words[at] == "-":
        return _other(program, words)
    options = tuple(word for word in words[:at] if word != "--")
    return PythonCommand(program, options, Main.SCRIPT, words[at], tuple(words[at + 1 :]))


def transparent(command: Sequence[str]) -> tuple[str, ...] | None:
    python = parse_command(command)
    if python is None or python.main is Main.OTHER:
        return None
    if python.main is Main.MODULE and python.target == TRANSPARENT:
        return tuple(command)
    before = 1 + len(python.options)
    return (*command[:before], "-m", TRANSPARENT, *command[before:])


def python_script(command: Sequence[str]) -> str | None:
    python = parse_command(command)
    if python is not None and python.main is Main.MODULE and python.target == TRANSPARENT:
        python = parse_command((python.program, *python.arguments))
    return python.target if python is not None and python.main is Main.SCRIPT else None


def title(command: Sequence[str]) -> str:
    path = python_script(command) or command[0]
    return next((part for part in reversed(path.split("/")) if part not in ("", ".")), "")


def _other(program: str, words: Sequence[str]) -> PythonCommand:
    return PythonCommand(program, tuple(words), Main.OTHER, "", ())


STOPPED_EXIT = 128 + signal.SIGTERM  # of `edl run`, whose job others have stopped
UNSTARTED_EXIT = 126  # a shell's exit status for a command that it could not start
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
FORMER_LOG = ".1"  # the end of the name of the file that was a worker's log before this one
LAST_LINE = "; its last line: "  # in the sentence that says how a process has failed
# The name of a process whose script has ended, before ":" and its exit code: first while exit
# handlers of libraries may still run, then when only the interpreter is left. Linux keeps 15
# characters of a name. STOPPED has the names in place of these when the job was told to end.
EXITING = "edl-exiting"
ENDED = "edl-ended"
STOPPED = {EXITING: "edl-stops", ENDED: "edl-stopped"}
BACKOFF_MAX_S = 30.0
QUICK_S = 60.0  # an error of the script's own this soon after its first step may come each time
QUICKLY_KILLED_S = 5.0  # the same for a kill from outside, which may be that of the memory's limit
_ENDS_BADLY = (JobState.RUNNING, JobState.FAILED)


@dataclass(frozen=True)
class Process:
    """One start of a worker process, as its launcher sees it; times by its clock, None: not yet."""

    slot: int
    attempt_id: str  # identifies this start in the worker's records
    started: float
    failures: int = 0  # failed starts in a row in this slot before this one
    worker: int | None = None  # None: it has not registered
    ready: bool = False  # it has ever been in stage READY or a later one
    seated: bool = False  # it has been a member of a generation
    generation: int = 0  # the newest in which it was seen as a member
    # about to leave, finished, or out of the ring by a switch or an eviction
    departing: float | None = None
    no_session_since: float | None = None  # no node in ZooKeeper, after it had one
    unresponsive_since: float | None = None  # no answer to its agent
    suspended_since: float | None = None
    evicted: str = ""  # why; empty: not, or on proof that the process is gone
    exited_at: float | None = None  # the leader has proof that the process is gone
    ending_since: float | None = None  # the launcher first asked it to end
    why: str = ""  # it is ended by its launcher
    ended: float | None = None  # its script
    ended_code: int = 0  # that the script reported at its end
    handled: float | None = None  # the script's exit handlers (`atexit`) have ended, too
    stopped: bool = False  # it ended because its job was told to end
    exit_code: int | None = None  # None: it runs; -9: killed by signal 9
    exited: float | None = None
    trained_s: float | None = None  # from the first step to the exit; None: it trained no step
    termination_message: str = ""  # the line of output that best says how it ended
    used_up: bool = False  # the slot was disabled after it
    deserted: bool = False  # it exited with code 0 while the others go on without it
    device: int | None = None  # None: it was given none

    @property
    def used_device(self) -> int:
        return self.slot if self.device is None else self.device

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    @property
    def failed(self) -> bool:
        """Whether the process has ended by itself, with an error or without ever registering."""
        halted = self.stopped and self.exit_code == HALTED_EXIT
        if self.exit_code is None or self.obeyed or halted or self.steps_back:
            return False
        return self.exit_code != 0 or self.worker is None

    @property
    def failed_at_start(self) -> bool:
        """Whether the process ended by itself, with a positive exit code, before its first step."""
        return self.failed and (self.exit_code or 0) > 0 and self.trained_s is None

    @property
    def refused(self) -> bool:
        return self.exit_code == REFUSED_EXIT and self.worker is not None

    @property
    def steps_back(self) -> bool:
        """Whether the process ended so that its replacement joins at the start of an epoch."""
        return self.exit_code == AGAIN_EXIT and self.seated

    @property
    def refuses(self) -> bool:
        """Whether the process runs, and will end as refused: its script has ended so."""
        says = self.ended is not None and self.ended_code == REFUSED_EXIT
        return self.alive and says and self.worker is not None

    @property
    def obeyed(self) -> bool:
        """Whether the process ended as its launcher asked it to or its worker was evicted."""
        if self.exit_code is None:
            return False
        if self.exit_code < 0 and -self.exit_code not in (signal.SIGTERM, signal.SIGKILL):
            return self.exit_code == UNKNOWN_EXIT and self._asked_before
        return self._asked_before or (bool(self.evicted) and self.exit_code <= 1)

    @property
    def blamed(self) -> bool:
        """Whether the end of the process counts as a failure of its slot."""
        return self.failed or self.deserted or bool(self.evicted)

    @property
    def _asked_before(self) -> bool:
        """Whether the launcher asked the process to end before its script ended; False if never."""
        end = self.exited if self.ended is None else self.ended
        return self.ending_since is not None and (end is None or self.ending_since < end)

    def failed_late(self, finished: float, finished_in: int) -> bool:
        """Return whether this process failed after the job had trained its last step."""
        # One that died while the others trained on was replaced or not needed: no failure.
        after = (self.exited or 0.0) >= finished
        last = self.generation >= finished_in if finished_in else after
        over = last or (self.departing is not None and after)
        return self.failed and bool(self.exit_code) and self.seated and over

    @property
    def name(self) -> str:
        return f"slot {self.slot}" if self.worker is None else f"w{self.worker}"

    @property
    def failures_now(self) -> int:
        """The number of failures in a row in this slot, this process included if it has failed."""
        if self.alive or not self.blamed:
            return 0 if self.exit_code == 0 else self.failures
        killed = self.exit_code in (-signal.SIGKILL, -signal.SIGTERM)
        quick_s = QUICKLY_KILLED_S if killed else QUICK_S
        progress = self.trained_s is not None and self.trained_s >= quick_s
        return 0 if progress else self.failures + 1

    def uses_up(self, max_restarts: int) -> bool:
        """Return whether the slot must be disabled, because of the end of this process."""
        final = self.refused or self.failures_now > max_restarts
        return not self.alive and not self.used_up and self.blamed and final

    def pause_s(self, longest_s: float) -> float:
        """Return for how many seconds after its end the slot is not started again."""
        waits = self.blamed and not self.used_up and self.trained_s is None
        return backoff_s(self.failures_now, longest_s) if waits else 0.0

    def is_undecided(self, state: JobState, now: float, settle_s: float) -> bool:
        """Return whether it is still open if this process deserted the others or all finished."""
        left = self.exit_code == 0 and self.seated and self.departing is None
        left = left and self.ending_since is None
        late = now - (self.exited or 0.0) >= settle_s
        return left and not self.deserted and state is JobState.RUNNING and not late

    def ending_text(self, host: str) -> str:
        """Return a sentence about the end, on `host`, of this process, which must have ended."""
        assert self.exit_code is not None
        what = f"{self.name} on {host} {how(self.exit_code)}"
        last = f"{LAST_LINE}{self.termination_message}" if self.termination_message else ""
        if self.failed:
            what += " without calling edl.init()" if self.exit_code == 0 else ""
            return f"{what}{last}"
        if self.deserted and not self.seated:
            return f"{what} before it had joined the job{last}"
        if self.deserted:
            return (
                f"{what} inside the training, by os._exit() or in a handler for a signal; the "
                "others go on without it. A script ends by its last line, `return` or sys.exit()"
            )
        if self.steps_back:
            return f"{what}: its replacement joins at the start of an epoch"
        if self.ending_since is not None:
            return f"{what}: it was ended by its launcher: {self.why}"
        if self.evicted:
            return f"{what}: the leader had given it up: {self.evicted}"
        return what


def unstarted(process: Process, command: Sequence[str], error: OSError) -> Process:
    # The host lacks memory, processes or disk space: its slot is tried again, the others train on.
    line = f"cannot start {' '.join(command)}: {error.strerror or error}"
    code = NO_PROGRAM_EXIT if error.errno in _NO_PROGRAM else UNSTARTED_EXIT
    return replace(process, exit_code=code, exited=process.started, termination_message=line)


@dataclass(frozen=True)
class ScriptEnd:
    """The end of a script, which its process reports by changing its own name."""

    code: int
    handled: bool  # the exit handlers (`atexit`) have run, too
    stopped: bool = False  # because its job was told to end

    @classmethod
    def read(cls, name: str) -> ScriptEnd | None:
        word, _, code = name.partition(":")
        stopped = word in STOPPED.values()
        said = (stopped or word in STOPPED) and code.isdigit()
        return cls(int(code), word in (ENDED, STOPPED[ENDED]), stopped) if said else None


def script_ended(process: Process, said: ScriptEnd, now: float) -> Process:
    ended = process.ended if process.ended is not None else now
    handled = process.handled if process.handled is not None or not said.handled else now
    stopped = process.stopped or said.stopped
    return replace(process, ended=ended, ended_code=said.code, handled=handled, stopped=stopped)


def exited(
    process: Process, code: int, now: float, last_line: str, trained_s: float | None = None
) -> Process:
    asked = process.ended is not None and process.ending_since is not None
    lingered = asked and not process._asked_before
    # The exit handlers did not end: what the script reported counts.
    if code == -signal.SIGKILL and lingered:
        code = process.ended_code
    # 128 + n without a report may be a shell script's whose command was killed by n.
    elif process.ended is None and code - 128 in _DEADLY:
        code = 128 - code
    return replace(
        process, exit_code=code, exited=now, termination_message=last_line, trained_s=trained_s
    )


def seen(process: Process, snapshot: Snapshot, now: float) -> Process:
    newest = snapshot.generation
    # The worker's record vanishes with its session.
    member = next((m for m in snapshot.members if m.attempt_id == process.attempt_id), None)
    worker, stage = (process.worker, None) if member is None else (member.id, member.stage)
    in_ring = newest is not None and worker in newest.worker_ids
    seated = process.seated or in_ring or (member is not None and member.generation > 0)
    # The proof that a process is gone explains no end: the process may be on its way out, and
    # ends with its own exit code.
    evicted = "" if worker is None else snapshot.evicted.get(worker, "")
    is_gone = evicted.startswith(GONE)
    # It is to end because it left, finished, or was taken out of the ring.
    leaving = stage in (Stage.LEAVING, Stage.FINISHED)
    if not leaving and newest is not None and seated and not in_ring and stage is not Stage.READY:
        # One that is no member after a repair was not taken out: it ended as the ring broke.
        known = process.worker is not None and newest.knows(process.worker)
        leaving = process.departing is not None or known or bool(evicted)
    leaving = leaving and not is_gone
    lacks_session = worker is not None and member is None and process.alive
    # Only its parent could tell how it has ended; if it was to end, it ended well.
    code, in_order = process.exit_code, leaving or snapshot.job.state not in _ENDS_BADLY
    return replace(
        process,
        exit_code=0 if code == UNKNOWN_EXIT and in_order else code,
        deserted=process.deserted or _deserted(process, worker, snapshot, leaving),
        worker=worker,
        seated=seated,
        generation=newest.number if newest is not None and in_ring else process.generation,
        ready=process.ready or seated or stage not in (None, Stage.PREPARING),
        departing=since(process.departing, leaving, now),
        no_session_since=since(process.no_session_since, lacks_session, now),
        evicted="" if is_gone else evicted or process.evicted,
        exited_at=since(process.exited_at, is_gone, now),
    )


def _deserted(process: Process, worker: int | None, snapshot: Snapshot, leaving: bool) -> bool:
    # It left a ring, which the others have repaired since, or before it was ready for its first.
    generation = snapshot.generation
    if process.exit_code != 0 or leaving or process.ending_since is not None or worker is None:
        return False
    if generation is None or not generation.members or snapshot.job.state is not JobState.RUNNING:
        return False
    if not process.seated:
        return not process.ready and worker not in snapshot.evicted
    if not generation.repairs:
        return False
    return generation.number > process.generation > 0 and worker not in generation.worker_ids


def how_all(processes: Sequence[Process], several: bool) -> str:
    codes = sorted({p.exit_code or 0 for p in processes})
    text = " or ".join(how(code) for code in codes)
    return text.replace("was killed", "were killed") if several else text


def last_words(process: Process) -> str:
    if not process.termination_message:
        return f"{process.name} wrote nothing"
    return f"{LAST_WORDS.removeprefix('; ')}{process.name}: {process.termination_message}"


def backoff_s(failures: int, longest_s: float = BACKOFF_MAX_S) -> float:
    return 0.0 if failures < 1 else min(longest_s, 2.0 ** (min(failures, 10) - 1))
