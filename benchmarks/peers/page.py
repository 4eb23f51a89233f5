"""benchmarks/results/peers.md: edl beside the systems that a user would take in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from statistics import median

from benchmarks.goodput import Goodput
from benchmarks.page import Section, markdown
from benchmarks.peers.environment import TORCHFT as TORCHFT_RELEASE
from benchmarks.peers.measure import (
    COORDINATOR,
    FREEZE,
    JOIN,
    KILL,
    LEAVE,
    WATCHED_S,
    Outcome,
    Session,
)
from benchmarks.peers.steps import EDL, LARGE, RING_SIZES, TORCHFT, Pair
from benchmarks.step_time import Comparison

COMMAND = 'make bench ARGS="--only peers"'


@dataclass(frozen=True)
class Peers:
    """What one run has measured.

    Attributes:
        sessions: of each system, one for each repetition; or why there are none.
        pairs: the steps beside DDP's; a sentence where the comparison failed.
        rings: seconds to build a ring, by ranks.
        large: a join and a leave with the large model, by system; a sentence where they failed.
        goodput: of each system; empty if it was not measured.
        coordinators: what is killed as the coordinator of each system.
        patience_s: how long a job may stand still before it counts as standing still for ever.
    """

    sessions: Mapping[str, Sequence[Session] | str]
    pairs: Sequence[tuple[Pair, Comparison | str]]
    rings: Mapping[int, float]
    large: Mapping[str, Session | str]
    goodput: Mapping[str, Goodput]
    coordinators: Mapping[str, str]
    patience_s: float


def page(found: Peers, machine: str) -> str:
    """Return the text of the page.

    Args:
        found: what was measured.
        machine: a line about the machine and the frameworks.
    """
    how = (
        f"Machine: {machine}; {TORCHFT_RELEASE}. MLP with two hidden layers, batch 32 a worker, "
        "SGD with momentum, synthetic data, one thread a worker. All have short time limits: "
        "Gloo's is 5 s with each of them, torchrun waits 1 s for the last agent (30 s), and the "
        "limits of torchft are 1 s for a heartbeat (5 s), 0.5 s for newcomers (60 s) and 20 ms "
        "for the tick of its lighthouse (100 ms). edl has its own settings."
    )
    sections = [_changes(found), _steps(found)]
    if found.rings:
        sections.append(_rings(found.rings))
    if found.large:
        sections.append(_large(found.large))
    return markdown("edl beside what you would use instead", COMMAND, how, sections)


def _changes(found: Peers) -> Section:
    systems = list(found.sessions)
    rows = [
        ["start: from the launcher to the first step of two workers"],
        ["a step of two workers, and of three"],
        [f"{JOIN}: gap"],
        ["the same: in force after"],
        [f"{LEAVE}: gap"],
        [f"{KILL}: gap"],
        ["the same: replaced after"],
        ["the same: steps redone"],
        [f"{COORDINATOR}: gap"],
        [f"{FREEZE}: gap"],
    ]
    for sessions in found.sessions.values():
        if isinstance(sessions, str):
            cells = [sessions, *[""] * (len(rows) - 1)]
        else:
            cells = _cells(sessions)
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    for row, goal in zip(rows, _goals(found.sessions), strict=True):
        row.append(goal)
    if found.goodput:
        texts = [
            f"{found.goodput[system].ratio:.1%}" if system in found.goodput else ""
            for system in systems
        ]
        rows.append(["[goodput under failures](goodput.md)", *texts, ""])
    how = (
        "A *gap* is the longest time in which no worker of the job completes a step, from the "
        "last step before the event until the job trains steadily again. Times in seconds, median "
        "(least to greatest). A step is *redone* if all workers complete it once more; a step that "
        "torchft throws away is not counted. A job that stands still for "
        f"{found.patience_s:g} s is not waited for any longer. The coordinator is "
        + ", ".join(f"{what} of {system}" for system, what in found.coordinators.items())
        + f"; the gap is looked for in the {WATCHED_S:g} s after its death and in what follows."
    )
    return Section("When the workers change", how, ["", *systems, "goal of edl"], rows)


def _cells(sessions: Sequence[Session]) -> list[str]:
    def of(event: str) -> list[Outcome]:
        return [one.outcomes[event] for one in sessions if event in one.outcomes]

    steps = [median(one.step_s for one in sessions), median(one.step_of_3_s for one in sessions)]
    kills = of(KILL)
    return [
        spread([one.start_s for one in sessions]),
        ", ".join(f"{1e3 * step:.0f} ms" for step in steps if not isnan(step)),
        _gaps(of(JOIN)),
        _untils(of(JOIN)),
        _gaps(of(LEAVE)),
        _gaps(kills),
        _untils(kills),
        str(sum(one.redone for one in kills)) if kills else "",
        _gaps(of(COORDINATOR)),
        _gaps(of(FREEZE)),
    ]


def _goals(found: Mapping[str, Sequence[Session] | str]) -> list[str]:
    """Return the goals of edl, row by row, each with whether edl has reached it."""
    edl = found.get(EDL, "")
    if isinstance(edl, str):
        return [""] * 10

    def beyond(event: str, step: Callable[[Session], float]) -> float:
        """Return the greatest gap of an event, less a step of the ring that it leads to."""
        return max(_gap_s(one, event) - step(one) for one in edl)

    def goal(text: str, reached: bool) -> str:
        return f"{text}: {'yes' if reached else '**no**'}"

    join = beyond(JOIN, lambda one: one.step_of_3_s)
    leave = beyond(LEAVE, lambda one: one.step_s)
    kill = beyond(KILL, lambda one: one.step_s)
    leader = beyond(COORDINATOR, lambda one: one.step_s)
    frozen = max(_gap_s(one, FREEZE) for one in edl)
    redone = sum(one.outcomes[KILL].redone for one in edl if KILL in one.outcomes)
    whole = ""
    if not isinstance(torchft := found.get(TORCHFT, ""), str):
        mine, theirs = (
            median(one.outcomes[JOIN].until_s or inf for one in each) for each in (edl, torchft)
        )
        whole = goal("at most torchft's", mine <= theirs)
    return [
        "",
        "",
        goal("a step and 0.02", join <= 0.02),
        whole,
        goal("a step and 0.02", leave <= 0.02),
        goal("a step and 0.15", kill <= 0.15),
        "",
        goal("0", redone == 0),
        goal("a step and 0.2", leader <= 0.2),
        goal("1.5", frozen <= 1.5),
    ]


def _gap_s(session: Session, event: str) -> float:
    """Return the gap of an event in seconds; infinity if the job did not train on."""
    outcome = session.outcomes.get(event)
    return inf if outcome is None or outcome.gap_s is None else outcome.gap_s


def _gaps(outcomes: Sequence[Outcome]) -> str:
    return _times([one.gap_s for one in outcomes], outcomes)


def _untils(outcomes: Sequence[Outcome]) -> str:
    return _times([one.until_s for one in outcomes], outcomes)


def _times(times: Sequence[float | None], outcomes: Sequence[Outcome]) -> str:
    """Return the spread of the times, and why some are missing, with how often."""
    known = [each for each in times if each is not None]
    why = [one.why for each, one in zip(times, outcomes, strict=True) if each is None]
    texts = [spread(known)] if known else []
    for reason in dict.fromkeys(why):
        often = f" ({why.count(reason)} of {len(times)})" if known or len(set(why)) > 1 else ""
        texts.append(f"{reason}{often}")
    return "; ".join(texts)


def spread(times: Sequence[float]) -> str:
    """Return a text like "0.16 (0.15 to 0.18)", in seconds; without the range if there is one."""
    text = f"{median(times):.2f}"
    return text if len(times) == 1 else f"{text} ({min(times):.2f} to {max(times):.2f})"


def _steps(found: Peers) -> Section:
    rows = []
    for pair, one in found.pairs:
        label = f"{pair.system}, {pair.label}" if pair.label else pair.system
        what = [label, pair.model, str(pair.workers)]
        if isinstance(one, str):
            rows.append([*what, one, *[""] * 6])
            continue
        goal = "" if pair.goal is None else f"{pair.goal:g}: "
        reached = "" if pair.goal is None else ("yes" if one.ratio <= pair.goal else "**no**")
        waits = ""
        if pair.system == EDL:
            waits = " (goal 1%: yes)" if one.b_idle < 0.01 else " (goal 1%: **no**)"
        rows.append(
            [
                *what,
                f"{1e3 * one.b_s:.1f}",
                f"{1e3 * one.a_s:.1f}",
                f"{one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})",
                goal + reached,
                f"{1e3 * one.b_cpu_s:.1f}",
                f"{1e3 * one.a_cpu_s:.1f}",
                f"{one.b_idle:.1%}" + waits,
            ]
        )
    how = (
        "Each system beside PyTorch's DDP on Gloo (`gradient_as_bucket_view=True`): both jobs run "
        "at the same time and train in turns, a block of steps each. The ratio is the median of "
        "neighbouring blocks, with its 95 % interval; *waiting* is the part of a core that a "
        "worker uses while the other job has its turn, the mean of its workers."
    )
    head = ["system", "parameters", "workers", "step, ms", "DDP's, ms", "ratio", "goal, at most"]
    head += ["processor time a step, ms", "DDP's, ms", "waiting"]
    return Section("A step", how, head, rows)


def _rings(found: Mapping[int, float]) -> Section:
    rows = [
        [str(size), f"{found[size]:.3f}", f"{goal:g}: {'yes' if found[size] <= goal else '**no**'}"]
        for size, goal in RING_SIZES.items()
    ]
    how = (
        "From the end of the old ring to the connected new one, when a job of edl grows to that "
        "size: the median of the old worker that waits longest. All ranks share two cores."
    )
    return Section("Building a ring", how, ["ranks", "s", "goal, s"], rows)


def _large(found: Mapping[str, Session | str]) -> Section:
    rows = []
    for system, one in found.items():
        row = [system]
        if isinstance(one, str):
            rows.append([system, one, *[""] * 5])
            continue
        for event, step_s in ((JOIN, one.step_of_3_s), (LEAVE, one.step_s)):
            outcomes = [one.outcomes[event]] if event in one.outcomes else []
            beyond_s = _gap_s(one, event) - step_s
            known = bool(outcomes) and outcomes[0].gap_s is not None
            row += [_gaps(outcomes), "" if isnan(step_s) else f"{step_s:.2f}"]
            row.append(f"{beyond_s:.2f}" if known else "")
            if system == EDL:
                row[-1] += f" (goal 0.02: {'yes' if beyond_s <= 0.02 else '**no**'})"
        rows.append(row)
    how = (
        "One join and one leave, in seconds. Under SGD with momentum the state of this model has "
        "800 MB, of which a step changes every byte."
    )
    head = ["system", "a worker joins: gap", "a step of three", "beyond a step"]
    head += ["a worker leaves: gap", "a step of two", "beyond a step"]
    return Section(f"A model of {LARGE} parameters", how, head, rows)
