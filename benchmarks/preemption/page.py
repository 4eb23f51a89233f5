"""benchmarks/results/preemption.md, from what :mod:`benchmarks.preemption.live` has measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from benchmarks.page import Section, markdown
from benchmarks.preemption.live import MODELS, RESUMED, SAVES, WARM, WORKERS, Latencies
from benchmarks.preemption.timeline import SWITCH, Latency, Migration
from benchmarks.resize import CHANGES, Stall

TITLE = "Checkpoint, preempt, resume, migrate: how long each takes"
COMMAND = "python -m benchmarks --only preemption"
GROW, SHRINK = CHANGES  # 2 -> 3, then 3 -> 2

# Table 5 of Singularity (Shukla and others, arXiv 2202.07848): seconds from end to end, and those
# of the transfer in them, by model and change.
SINGULARITY: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "BERT, 109 M": {"migrate": (36, 17), "shrink": (45, 26), "grow": (34, 15)},
    "ResNet-50, 26 M": {"migrate": (58, 37), "shrink": (67, 45), "grow": (59, 39)},
}
THEIR_CHANGES = {
    "migrate": "migrate, 16 to 16",
    "shrink": "shrink, 16 to 8",
    "grow": "grow, 8 to 16",
}
OUR_CHANGES = {
    "migrate": "`edl migrate`, 2 to 2",
    "stopped": "`edl preempt`, then `edl run --resume`, 2 to 2",
    "shrink": "`edl scale`, 3 to 2",
    "grow": "`edl scale`, 2 to 3",
}

PREEMPTED = {
    "request": "until the leader has written the end",
    "step": "until the last step is complete",
    "close": "the ring closes",
    "copy": "the state is copied",
    "write": "and written",
    "workers": "the workers end",
    "others": "the rest ends",
}
STARTED = {
    "process": "until the workers' processes begin",
    "imports": "imports",
    "ring": "ring",
    "model": "data and model",
    "read": "the checkpoint is read",
    "others": "the others have theirs",
    "state": "the others get the state",
    "step": "first step",
}
MIGRATED = {
    "request": "until the request is written",
    "newcomers": "newcomers start, the others train",
    "switches": "switches, until a step without old workers",
    "end": "old workers and command end",
}


def page(found: Mapping[str, Latencies], machine: str) -> str:
    """Return the text of the page; ``found`` has what was measured, by model."""
    repetitions = max(len(one.preempted) for one in found.values())
    how = (
        f"Machine: {machine}. Each figure is the median of {repetitions} repetitions, of a whole "
        "with the least and the greatest in parentheses. The parts of one repetition add up to its "
        "whole; their medians need not. All processes are on this one machine, ZooKeeper too, and "
        "the file of a checkpoint is in its page cache when it is read. SGD with momentum; "
        "ResNet-50 with images of 32 by 32 pixels, batch 4 a worker, the MLP with batch 32."
    )
    sections = [_beside(found), _saves(found), _preempted(found), _started(found),
                *_changes(found)]  # fmt: skip
    return markdown(TITLE, COMMAND, how, sections)


def spread(values: Sequence[float]) -> str:
    """Return the median, the least and the greatest of some seconds, as text."""
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def text(seconds: float) -> str:
    """Return seconds as text: to 10 ms, and below a second to 1 ms."""
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def _beside(found: Mapping[str, Latencies]) -> Section:
    """Return the section that has edl's figures beside those of Singularity."""
    rows = [
        [f"Singularity, {model}: {THEIR_CHANGES[change]}", str(whole), str(transfer), "all of it"]
        for model, changes in SINGULARITY.items()
        for change, (whole, transfer) in changes.items()
    ]
    for model, one in found.items():
        for change, (whole, transfer, stood) in _ours(one).items():
            cells = [spread(whole), text(median(transfer)), text(median(stood))]
            rows.append([f"edl, {MODELS[model]}: {OUR_CHANGES[change]}", *cells])
    how = (
        "Singularity's figures are those of Table 5 of its paper (Shukla and others, arXiv "
        "2202.07848): jobs on 8 to 16 V100 GPUs in several servers, whose checkpoints go through "
        "a remote store. The hardware, the models' inputs and the numbers of workers differ, so do "
        "not compare the seconds: compare which parts there are, and which of them hold up the "
        "training. *Transfer* is, in Singularity, the way of a checkpoint to and from the store; "
        "in edl the broadcast of the state to the newcomers, and with `--resume` writing and "
        "reading the checkpoint and giving it to the others, all on this machine. "
        "A whole of edl's begins with the call of the command."
    )
    head = ["", "whole, s", "transfer of it, s", "nobody trains, s"]
    notes = [
        (
            "Singularity stops the job, whatever its script, moves its processes, and starts it at "
            "the other size. `edl migrate` and `edl scale` let the old workers train on until the "
            "new ones are ready; their script is one of edl's."
        ),
        "After `edl preempt`, the time in which the job waits for slots comes in addition.",
    ]
    return Section("Beside Singularity", how, head, rows, notes)


Measured = tuple[list[float], list[float], list[float]]


def _ours(one: Latencies) -> dict[str, Measured]:
    """Return by change the wholes, the transfers and the stand-stills of one model, in seconds."""
    pairs = list(zip(one.preempted, one.resumed[WORKERS], strict=True))
    idle = [
        stop.total_s - stop.parts_s["request"] - stop.parts_s["step"] + go.total_s
        for stop, go in pairs
    ]
    return {
        "migrate": (
            [move.latency.total_s for move in one.migrated],
            [move.switches_s["broadcast"] for move in one.migrated],
            [move.stall_s for move in one.migrated],
        ),
        "stopped": (
            [stop.total_s + go.total_s for stop, go in pairs],
            [
                stop.parts_s["write"] + go.parts_s["read"] + go.parts_s["state"]
                for stop, go in pairs
            ],
            idle,
        ),
        "shrink": _resized(one, SHRINK),
        "grow": _resized(one, GROW),
    }


def _resized(one: Latencies, change: str) -> Measured:
    stalls = [each[change] for each in one.resized]
    return (
        [stall.whole_s for stall in stalls],
        [stall.parts_s["broadcast"] for stall in stalls],
        [_stood_s(stall) for stall in stalls],
    )


def _stood_s(stall: Stall) -> float:
    """Return by how much the longest gap was longer than a step, in seconds."""
    return max(0.0, stall.gap_s - stall.median_step_s)


def _saves(found: Mapping[str, Latencies]) -> Section:
    rows = [
        [
            MODELS[model],
            f"{median(save.size for save in one.saves) / 1e6:.1f}",
            spread([save.copy_s for save in one.saves]),
            spread([save.write_s for save in one.saves]),
        ]
        for model, one in found.items()
    ]
    how = (
        f"{WORKERS} workers train, and rank 0 saves model and optimizer every two seconds. "
        f"{SAVES} saves a repetition, from the event `checkpoint`. Training pauses while the state "
        "is copied; a thread writes it meanwhile to a local disk, with checksums, and syncs it."
    )
    head = ["", "file, MB", "training pauses, s", "writing beside it, s"]
    return Section("A checkpoint", how, head, rows)


def _preempted(found: Mapping[str, Latencies]) -> Section:
    rows = [
        [MODELS[model], spread([each.total_s for each in one.preempted]),
         *_medians(one.preempted, PREEMPTED)]
        for model, one in found.items()
    ]  # fmt: skip
    how = (
        f"From the call of `edl preempt` to the end of all processes, of a job of {WORKERS} "
        f"workers that have made {WARM} steps. *Until the leader has written the end* begins with "
        "the start of the command, a Python process. The workers are gone when the last of their "
        "processes has ended; *the rest* is `edl run`, the template process, and `edl preempt`."
    )
    return Section("From preempt to gone", how, ["", "whole, s", *PREEMPTED.values()], rows)


def _started(found: Mapping[str, Latencies]) -> Section:
    rows = []
    for model, one in found.items():
        starts = {"start anew, 2 workers": one.started}
        starts |= {f"resume, {WORKERS} to {size}": one.resumed[size] for size in RESUMED}
        for name, each in starts.items():
            whole = spread([start.total_s for start in each])
            rows.append([f"{MODELS[model]}: {name}", whole, *_medians(each, STARTED)])
    how = (
        "From the call of `edl run --resume` until all workers have completed a step; beside it a "
        "job that starts without a checkpoint, and saves its state before the first step. A part "
        "is over when the last worker has reached its end; but rank 0 reads the checkpoint as soon "
        "as it has its own model, then waits for the others, and broadcasts the state. The workers "
        "of a start are no forks of a template: there is none yet. More workers than cores import "
        "more slowly. *Data and model* has the import of PyTorch's compiler, which its first "
        "optimizer imports."
    )
    return Section("From resume to the first step", how, ["", "whole, s", *STARTED.values()], rows)


def _changes(found: Mapping[str, Latencies]) -> Iterator[Section]:
    """Yield the sections of the migrations, and of the switches of all changes."""
    rows = [
        [MODELS[model], spread([each.latency.total_s for each in one.migrated]),
         *_medians([each.latency for each in one.migrated], MIGRATED)]
        for model, one in found.items()
    ]  # fmt: skip
    how = (
        f"From the call of `edl migrate` for the {WORKERS} workers of a host until the old ones "
        "have ended. The other host is this machine by another name, and has no template, as a new "
        "host has none. One old worker brings the state and leaves one switch later."
    )
    yield Section("A migration", how, ["", "whole, s", *MIGRATED.values()], rows)
    rows = []
    for model, one in found.items():
        rows.append([f"{MODELS[model]}: {OUR_CHANGES['migrate']}", *_moved(one.migrated)])
        for name, change in (("shrink", SHRINK), ("grow", GROW)):
            stalls = [each[change] for each in one.resized]
            stood = spread([_stood_s(stall) for stall in stalls])
            parts = [stall.parts_s for stall in stalls]
            rows.append([f"{MODELS[model]}: {OUR_CHANGES[name]}", stood, *_of(parts, SWITCH)])
    count = round(median(each.switches for one in found.values() for each in one.migrated))
    how = (
        "For how long nobody trains: by how much the longest gap between two steps is longer than "
        "the median step. Beside it the parts of the switch, which edl logs, of the old worker "
        "that stood still longest. A migration of all workers has a second switch, when the worker "
        f"that has brought the state leaves: the times of {count} switches are added up. The "
        "parts have the whole first step in them, so their sum is longer by a step a switch. The "
        "[benchmark of resizes](../../docs/benchmarks.md#how-to-repeat-them) measures the changes "
        "of size, here with these models."
    )
    head = ["", "nobody trains, s", "wait for all", "close the old ring", "build the new one",
            "broadcast", "first step"]  # fmt: skip
    yield Section("A switch", how, head, rows)


def _moved(moves: Sequence[Migration]) -> list[str]:
    stood = spread([each.stall_s for each in moves])
    return [stood, *_of([each.switches_s for each in moves], SWITCH)]


def _medians(found: Sequence[Latency], names: Iterable[str]) -> list[str]:
    return _of([each.parts_s for each in found], names)


def _of(parts: Sequence[Mapping[str, float]], names: Iterable[str]) -> list[str]:
    """Return the median of each part, as text; empty where there is none of that name."""
    return [
        text(median(each[name] for each in parts)) if name in parts[0] else "" for name in names
    ]
