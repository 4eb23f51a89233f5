"""Describe in words what led to a new ring, and what the switch to it has cost the workers.

`edl events`, the metrics and the dashboard use these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from edl.events import Event, EventKind, GenerationDetails, SwitchDetails
from edl.records import SwitchParts

# ------------------------------------------------------------
# Explain each kind of event to people: what it means, why it happens, and what to do.
#
# `EXPLANATIONS` has one `EventExplanation` for each member of `EventKind`. `edl events --explain`
# prints it, `edl top` takes colours from it, and `make docs` generates a table of
# docs/reference/status-and-events.md.


class Severity(StrEnum):
    """How much an event concerns a person."""

    NORMAL = "normal"  # a job does this by itself
    WARNING = "warning"  # the job goes on, but something costs time or may happen again
    ERROR = "error"  # somebody should act


@dataclass(frozen=True)
class EventExplanation:
    """The explanation of one kind of event, as texts in Markdown without links."""

    severity: Severity
    meaning: str  # what has happened, in a sentence
    why: str  # the usual causes
    advice: str  # what to do


_normal = partial(EventExplanation, Severity.NORMAL)
_warning = partial(EventExplanation, Severity.WARNING)
_error = partial(EventExplanation, Severity.ERROR)
_NOTHING = "Nothing."
EXPLANATIONS: Mapping[EventKind, EventExplanation] = {
    EventKind.LEADER: _normal(
        "A worker leads the job from now on: it decides which workers are in the ring.",
        "The job starts, the leader before it left, died or was frozen, or the leader's connection "
        "to ZooKeeper was lost and is back.",
        "Nothing, if it is rare. Many in a row: ZooKeeper or the network is slow; `edl doctor` "
        "says whether ZooKeeper answers.",
    ),
    EventKind.GENERATION: _normal(
        "The leader has written the members of a new ring; the workers switch to it.",
        "Workers join or leave, or the ring broke and those that are left repair it. The reason "
        "names the workers and the cause.",
        "Nothing. After a repair, find the cause in the events just before it.",
    ),
    EventKind.SWITCH: _normal(
        "The switch to a new ring is over; the event says how long each worker stood still.",
        "It follows each `generation`.",
        "Nothing. A long stall: its parts, in `edl events --json`, say what took the time.",
    ),
    EventKind.EVICTED: _warning(
        "The leader has removed a worker from the job.",
        "The worker died, froze, lost its network, held the others up for longer than "
        "`stall_limit_s`, was not ready in time, or had not given back a borrowed slot.",
        "Read the reason, and what the worker printed: `edl logs JOB WORKER`. A replacement "
        "starts by itself where one is wanted.",
    ),
    EventKind.STALLED: _error(
        "No step completes; the reason names the worker that holds the job up and its line.",
        "A worker waits in its own code: for data, a lock, a compilation, an exchange of its own. "
        "Or it was stopped.",
        "Look at the line that the reason names. If it does not end, kill that process on its "
        "host: the others go on and a replacement starts. `EDL_STALL_LIMIT_S` lets edl do that.",
    ),
    EventKind.PAUSED: _error(
        "Fewer workers are left than `min_np`; they wait for others and do not train.",
        "Workers or hosts were lost faster than replacements came.",
        "Offer slots: `edl join` on another host. Without others the job fails after "
        "`elastic_timeout_s`.",
    ),
    EventKind.DRAIN: _normal(
        "The leader has accepted or refused that a worker leaves.",
        "Somebody has called `edl drain`, or a worker is to be replaced.",
        "If it is refused, the reason says why, such as too few workers that would be left.",
    ),
    EventKind.DESIRED: _normal(
        "Another number of workers is wanted on some host.",
        "Somebody has called `edl scale` or `edl migrate`, a policy or a cluster has decided so, a "
        "host has joined or left, or a slot was disabled. The reason says which.",
        "Nothing; the workers come or leave with the next switches.",
    ),
    EventKind.RECLAIMED: _normal(
        "Slots that the job had borrowed are free again.",
        "`edl reclaim` or the owner of the slots has asked for them.",
        _NOTHING,
    ),
    EventKind.PROFILING: _normal(
        "The job is measured at other sizes; its number of workers changes meanwhile.",
        "Somebody has called `edl profile`.",
        "Wait: the number of workers is restored afterwards.",
    ),
    EventKind.PROFILE: _normal(
        "The throughput of the job with one number of workers was measured.",
        "`edl profile` runs.",
        _NOTHING,
    ),
    EventKind.POLICY: _normal(
        "The policy of the job has decided how many workers it wants, or was switched off.",
        "It has measured other speeds than before, or its code has raised an error.",
        "`edl policy explain` shows what it has measured. If it has failed, mend it and set it "
        "again with `edl policy set`.",
    ),
    EventKind.POLICY_SET: _normal(
        "A policy was given to the job, or turned on or off.",
        "Somebody has called `edl policy`, or the script brings a policy.",
        _NOTHING,
    ),
    EventKind.GLOBAL_BATCH: _normal(
        "The job trains with another global batch from now on.",
        "Its policy or its cluster has chosen a batch that trains faster.",
        "Nothing; the learning rate follows where the script lets edl scale it.",
    ),
    EventKind.WORKER_FAILED: _error(
        "A worker process has ended by itself, with an error or too early.",
        "Its script has raised an error, it was killed (signal 9 is often the lack of memory), or "
        "it ended before the others did.",
        "Read its last lines: `edl logs JOB WORKER`. A replacement starts by itself; if it fails "
        "again and again, its slot is disabled.",
    ),
    EventKind.WORKER_EXITED: _normal(
        "A worker process has ended in order.",
        "It has finished, has left after a drain or a smaller size, or the job was stopped.",
        _NOTHING,
    ),
    EventKind.WORKER_FROZEN: _error(
        "A worker does not answer any more, or is suspended; its agent ends it.",
        "The process was stopped (SIGSTOP), waits in the kernel (for a dead disk or GPU), or some "
        "code holds Python's interpreter lock.",
        "Look into the file of stacks that the event names, on that host. A replacement starts by "
        "itself.",
    ),
    EventKind.LOG_FAILED: _error(
        "A worker cannot write its log; it trains on, and its output is lost meanwhile.",
        "The disk is full, or the directory of logs was removed.",
        "Free space on that host. The log goes on by itself.",
    ),
    EventKind.LOG_RESUMED: _normal(
        "A worker writes its log again; the event says how many bytes of its output are lost.",
        "Its disk has space again.",
        _NOTHING,
    ),
    EventKind.SLOW_WORKER: _warning(
        "One worker computes at least twice as long in a step as the others, which wait for it.",
        "Its host is busy, its GPU is throttled or shared, or its data loads slowly.",
        "Look what else runs on its host. `edl drain JOB WORKER` removes it, and a policy for "
        "stragglers gives it a smaller batch.",
    ),
    EventKind.STRAGGLER: _warning(
        "The policy has found slow workers, has changed their batches or replaces one; or one is "
        "as fast as the others again.",
        "As for `slow_worker`; the reason says whether they compute, load or reduce slowly.",
        "Nothing, the policy acts. If it is always the same host, look at that host.",
    ),
    EventKind.LOSS_SPIKE: _error(
        "The loss is infinite or nan, or has risen to three times its lowest value and more.",
        "Most often the learning rate is too high, from the start or since it rose. Else the data "
        "changed, the model divides by zero, or half precision overflows.",
        "Compare the charts of loss and learning rate. Go back to a checkpoint from before "
        "(`edl checkpoint list`), and resume with a lower learning rate.",
    ),
    EventKind.ZOOKEEPER_BACK: _warning(
        "ZooKeeper answers again; training went on meanwhile, and nobody could join or leave.",
        "The server was restarted or overloaded, or the network was cut.",
        "Nothing, if it is rare. Else look at the load of ZooKeeper's hosts and their disks.",
    ),
    EventKind.JOB_RESTORED: _warning(
        "ZooKeeper had lost the job, and a process has written the job's records again.",
        "ZooKeeper came back with an empty disk, or somebody removed its data.",
        "Keep ZooKeeper's data on a disk that stays. Events from before are only in the logs.",
    ),
    EventKind.SLOT_DISABLED: _error(
        "No worker is started in a slot any more.",
        "Its workers failed more than `max_restarts` times in a row, or can never join the job.",
        "Mend the cause (`edl logs JOB`), then ask for the workers again with `edl scale`, which "
        "uses disabled slots, too.",
    ),
    EventKind.NO_TEMPLATE: _warning(
        "The workers of a host are started anew, not forked from a prepared process.",
        "The script or a library does something at import that a fork does not survive, such as "
        "threads or a GPU in use. The reason says which.",
        "Nothing: newcomers only take some seconds longer.",
    ),
    EventKind.CHECKPOINT: _normal(
        "A checkpoint is written.",
        "The script asks for checkpoints, or the job ends.",
        "Nothing; `edl checkpoint list` shows them.",
    ),
    EventKind.CHECKPOINT_FAILED: _error(
        "A checkpoint could not be written; training goes on.",
        "The disk is full or read-only, the directory is not there, or its file server is away.",
        "Free space, or mend the directory, before the job ends: `edl run` ends with 1 if the last "
        "one is missing.",
    ),
    EventKind.CHECKPOINT_REFUSED: _error(
        "A checkpoint cannot be loaded; an older one is tried.",
        "The file is damaged, or belongs to another model or another edl.",
        "`edl checkpoint show FILE` says what is in it. Compare the script with the one that wrote "
        "it.",
    ),
    EventKind.RESUMED: _normal(
        "The job has loaded a checkpoint and goes on from there.",
        "It was started with `--resume`, or all its workers had died.",
        "Nothing. Steps after the checkpoint are trained again.",
    ),
    EventKind.STATE_DIFFERS: _error(
        "The workers do not hold the same model, optimizer or tracked state any more.",
        "The script changes state on some workers only, hosts compute differently, or memory is "
        "faulty.",
        "The reason names the first difference: change that on all workers alike. "
        "`--on-divergence resync` gives the minority the state of the others.",
    ),
    EventKind.EXACT_AUDIT: _normal(
        "Logical workers were trained twice, with the same bits.",
        "The job was started with `--exact-audit`.",
        _NOTHING,
    ),
    EventKind.DATA_SKIPPED: _warning(
        "Damaged parts of the data are left out.",
        'Files are damaged, and the script reads them with `on_error="skip"`.',
        "Restore the files that the event names, and start again if their samples matter.",
    ),
    EventKind.TRAINING_STOPPED: _normal(
        "All workers have left Keras' `fit` before its last epoch.",
        "A callback, such as early stopping, wanted it.",
        _NOTHING,
    ),
    EventKind.EPOCH_LEFT: _warning(
        "All workers have left an epoch before its end; the rest of its samples is not trained.",
        "The loop of the script ends after a number of steps, or breaks.",
        "Nothing, if the script means it. Else loop over the whole loader.",
    ),
    EventKind.FINISHED: _normal(
        "The training is complete.",
        "All epochs or steps are trained, or all scripts have ended after the same step.",
        _NOTHING,
    ),
    EventKind.JOB_FINISHED: _normal(
        "The job has finished: all workers have exited with code 0.",
        "The scripts have ended.",
        _NOTHING,
    ),
    EventKind.JOB_FAILED: _error(
        "The job has ended and has not finished.",
        "All workers failed, too few were left for too long, or the job could not begin. The "
        "reason says which.",
        "Mend the cause (`edl logs JOB`), and start it again; `edl run --resume` goes on from the "
        "newest checkpoint.",
    ),
    EventKind.JOB_STOPPED: _normal(
        "The job has ended because it was asked to.",
        "Somebody has called `edl stop`, pressed Ctrl-C, or ended the terminal of `edl run`.",
        "`edl run --resume` goes on from the newest checkpoint.",
    ),
}
LAST_WORDS = "; the last line of "  # in the sentence that says how a job has failed
CHANGE_KINDS = ("start", "join", "leave", "migrate", "crash", "rebuild")


def kind_of_change(generation: int, new: GenerationDetails) -> str:
    """Return what led to a new ring, as one of `CHANGE_KINDS`."""
    if generation <= 1:
        return "start"
    if new.repair:
        return "crash"
    if new.joined and new.left:
        return "migrate"
    return "join" if new.joined else "leave" if new.left else "rebuild"


def cost(event: Event) -> str:
    if not isinstance(event.details, SwitchDetails) or not event.details.workers:
        return ""
    by_number = sorted(event.details.workers.items(), key=lambda item: (len(item[0]), item[0]))
    stalls = "stall " + ", ".join(f"{name} {_ms(parts.stall_s)} ms" for name, parts in by_number)
    if all(parts.survivor_report_s == 0.0 for _, parts in by_number):
        return stalls
    name, parts = max(by_number, key=lambda item: without_step_s(item[1]))
    recovery = {
        "detect": parts.detect_s,
        "election": parts.election_s,
        "survivor report": parts.survivor_report_s,
        "init": parts.init_s,
        "broadcast": parts.broadcast_s,
        "first step": parts.first_step_s,
    }
    each = ", ".join(f"{part} {_ms(seconds)}" for part, seconds in recovery.items() if seconds)
    return f"no step for {_ms(without_step_s(parts))} ms: {name} {each}; {stalls}"


def without_step_s(parts: SwitchParts) -> float:
    """Return how long a worker completed no step around a switch, from its wait in a failed one."""
    return parts.detect_s + parts.stall_s + parts.first_step_s


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.0f}"


def longest_stall(switch: SwitchDetails) -> SwitchParts | None:
    old = [parts for parts in switch.workers.values() if parts.role == "old"]
    return max(old, key=lambda parts: parts.stall_s, default=None)
