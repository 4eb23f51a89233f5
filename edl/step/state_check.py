"""Check whether all workers hold the same state, and find what differs and which workers are right.

Each worker makes a digest of every part (tensor or value) of the state that must be equal on all
workers, and folds the digests into one number (:func:`fold`), which is sent with its step record.
All workers then see from the same table whether they agree (:func:`split_of`). Only if they do not,
they exchange the digests of the parts, from which :func:`reason` makes the message. The largest
group of workers that agree counts as right if it is a majority (:class:`Split`).

A digest of the whole state costs too much for every step. So a state is cut by bytes into as many
groups as there are steps between two comparisons, and after each step one of them is compared
(:func:`due`): the cost is the same in each step, and every byte is compared once in so many steps.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edl.step.ledger import Ledger, Span, common
from edl.step.record import StepRecords, Stop
from edl.text import counted, names, verb

# ------------------------------------------------------------
# Audit logical workers: train each of them on two workers, and compare the bits of the results.
#
# With the setting `exact_audit` = N, each worker trains in N steps the logical workers of its own
# slice of the global batch, and after them those of the next worker's slice (`repeated`). What it
# computes for these counts for nothing. At the end of the step all workers add up their
# `AuditTable`, and compare the two results of each logical worker.


class Pass(NamedTuple):
    """One pass of a logical worker in the open step."""

    logical: int  # the logical worker's number in the step, from 0
    repeats: bool  # it computes again what another worker has computed, and does not count


class AuditMismatch(NamedTuple):
    """The first value that two passes of the same logical worker have computed differently."""

    logical: int  # the logical worker's number in the step, from 0
    worker: int  # whose result counts
    repeated_by: int  # the worker that has computed it once more
    name: str

    def differing_newcomer(self, newcomers: Collection[int]) -> int | None:
        """Return the newcomer that must end, for it differs from an old worker; None: all end."""
        found = {self.worker, self.repeated_by} & set(newcomers)
        return found.pop() if len(found) == 1 and self.worker != self.repeated_by else None


class AuditResult(NamedTuple):
    """The result of the comparison of one step."""

    compared: int  # how many logical workers were trained twice
    on_two_workers: int  # how many of them by two workers, and not twice by the only one
    difference: AuditMismatch | None  # the first one


class AuditSteps:
    """The steps of a job that are audited; all workers of a ring hold the same."""

    def __init__(self, steps: int = 0) -> None:
        self._steps = steps
        self._begins = False  # with the next step
        self._remaining = 0  # steps, also while one is open that is not audited
        self._end = 0  # the number of the epoch's first global batch that is not audited
        self.members: Sequence[int] = ()  # of the ring, in rank order
        self.left = 0  # steps that are audited, from the open or next one on; 0: that one is not
        # the workers because of which steps are audited; empty at the beginning of a job
        self.newcomers: frozenset[int] = frozenset()

    def enter_ring(self, members: Sequence[int]) -> None:
        """Note the ids of the workers in a new ring, in rank order, before its next step."""
        if new := set(members) - set(self.members):
            self._begins = True
            self.newcomers = frozenset(new if self.members else ())
        self.members = members
        self._end = self.left = 0  # a step that goes on in a new ring is not audited

    def resume(self) -> None:
        """Begin a window with the next step, because the job goes on from a checkpoint."""
        self._begins = True

    def end_step(self) -> None:
        self._remaining -= self.left > 0
        self.left = 0

    def next_step(self, batch: int) -> None:
        """Decide whether the next step is audited; `batch` is its global batch in the epoch."""
        if self._begins:
            self._begins, self._remaining = False, self._steps
        self.left, self._end = self._remaining, batch + self._remaining

    def has(self, batch: int) -> bool:
        """Return whether the global batch with the number `batch` of the epoch is audited."""
        return batch < self._end

    def header(self) -> dict[str, Any]:
        """Return the state of the audit, as JSON values, to be sent with the job's state."""
        own = {"left": self.left, "remaining": self._remaining, "end": self._end}
        return {**own, "newcomers": sorted(self.newcomers)}

    def take_over(self, header: Mapping[str, Any]) -> None:
        """Audit the same steps as the state source, which has sent its `header()`."""
        self._begins, self.newcomers = False, frozenset(header["newcomers"])
        self.left, self._remaining = int(header["left"]), int(header["remaining"])
        self._end = int(header["end"])


def repeated(ledger: Ledger, worker: int, members: Sequence[int], batch: Span) -> tuple[Span, ...]:
    """Return what `worker` trains again of a global batch: the slice of the next that has one."""
    slices = [(each, common(ledger.held_by(each), [batch])) for each in members]
    trained = [(each, spans) for each, spans in slices if spans]
    own = next((place for place, (each, _) in enumerate(trained) if each == worker), None)
    return () if own is None else trained[(own + 1) % len(trained)][1]


class AuditTable:
    """The results of all passes of a step, as a list of numbers that all workers add up."""

    # Each pass has a row: the id of its worker plus 1, then a digest of each value. A worker fills
    # the rows of its own passes, and the others are 0: the sum of the lists has all rows.

    def __init__(self, logical: int, names: Sequence[str]) -> None:
        self._logical, self._names = logical, names
        self._width = 1 + len(names)

    def filled(self, worker: int, passes: Mapping[Pass, Mapping[str, int]]) -> list[float]:
        numbers = [0.0] * (2 * self._logical * self._width)
        for one, digests in passes.items():
            begin = self._row(one)
            numbers[begin] = float(worker + 1)
            for place, name in enumerate(self._names, begin + 1):
                if name in digests:  # at most 2**52, exact in a float64
                    numbers[place] = float(digests[name] + 1)
        return numbers

    def compare(self, numbers: Sequence[float]) -> AuditResult:
        """Compare both passes of each logical worker in `numbers`, the sum of all lists."""
        compared = apart = 0
        for logical in range(self._logical):
            first, second = (self._row(Pass(logical, repeats)) for repeats in (False, True))
            worker, by = int(numbers[first]) - 1, int(numbers[second]) - 1
            if worker < 0 or by < 0:
                continue
            compared, apart = compared + 1, apart + (worker != by)
            for place, name in enumerate(self._names, 1):
                if numbers[first + place] != numbers[second + place]:
                    difference = AuditMismatch(logical, worker, by, name)
                    return AuditResult(compared, apart, difference)
        return AuditResult(compared, apart, None)

    def _row(self, one: Pass) -> int:
        return (2 * one.logical + one.repeats) * self._width


Digests = Mapping[str, int]  # the digest of each part of a state, by the part's name
Rates = Mapping[str, float]  # learning rates, by name: "learning rate"
NO_RATES: Mapping[int, Rates] = {}

SCRIPT_ADVICE = (
    "What all share may change by the averaged gradients only, or on all workers alike: look for "
    "code that runs on some of them, and for rates that each computes by its own numbers. "
    "EDL_STATE_CHECK_STEPS=0 turns this check off"
)

ADVICE = (
    "What all share may change in optimizer.step() only, or on all workers alike: look for code "
    "that runs on some of them, for a schedule of your own that edl.track does not know, and for "
    "decisions by numbers that are a worker's own (edl.mean makes them the job's). "
    "EDL_STATE_CHECK_STEPS=0 turns this check off"
)

STEP_VALUE = "value that scheduler.step() got"  # stands among the rates of a worker, after them

VALUE_ADVICE = (
    "Each worker has computed that value by itself, from data of its own or with averages of "
    "BatchNorm of its own (edl's loaders make these the job's at an epoch's end): call "
    "scheduler.step(edl.mean(value)) on all workers"
)


# A save of a script copies its whole state: 40 to 50 ms for 25 million parameters with Adam. The
# digest of all of it took 104 to 116 ms there, that of such a part 2.4 ms.
PARTS_OF_SCRIPT = 50
NEVER = -2  # stands for the step after which newcomers joined, if none has joined
ALIGN_BYTES = 64  # a part is cut at multiples of this: whole elements of any type


@dataclass(frozen=True)
class StateGroup:
    """A group of bytes of a state: the `index`-th of `count` groups of equal size, from 0 on."""

    index: int
    count: int


WHOLE = StateGroup(0, 1)


def due(step: int, begins_epoch: bool, every: int, joined_after: int = NEVER) -> StateGroup | None:
    """Return the group of the state's bytes to compare after step `step`; None: nothing."""
    if every == 0 or step == 0:  # before step 1 all workers have just received the state
        return None
    whole = begins_epoch or step == joined_after + 1
    return WHOLE if whole else StateGroup(step % every, every)


def coarser(group: StateGroup, most: int | None) -> StateGroup | None:
    """Return the group in place of `group` if a state may have `most` only; None: it is no turn."""
    if most is None or group.count <= most:
        return group
    index, rest = divmod(group.index, group.count // most)
    return StateGroup(index, most) if rest == 0 and index < most else None


def due_at_save(step: int, every: int, is_first: bool) -> StateGroup | None:
    """Return the group of the state's bytes to compare when a script saves its state."""
    if every == 0:
        return None
    count = min(every, PARTS_OF_SCRIPT)
    return WHOLE if is_first else StateGroup(step % count, count)


@dataclass(frozen=True)
class Extent:
    """The bytes from `start` to `stop - 1` of one part (tensor or value) of a state."""

    part: int  # its index in the state
    start: int  # counted from the beginning of the part
    stop: int


def extents(ends: Sequence[int], group: StateGroup) -> list[Extent]:
    """Return the bytes that belong to `group`, one extent for each part that has some, in order."""
    # `ends`: where each part ends, in bytes, when all are laid end to end.
    total = ends[-1] if ends else 0
    begin = total * group.index // group.count
    end = total * (group.index + 1) // group.count
    found = []
    for part in range(bisect_right(ends, begin), min(len(ends), bisect_left(ends, end) + 1)):
        first = ends[part - 1] if part else 0
        start, stop = (_cut(bound - first, ends[part] - first) for bound in (begin, end))
        if start < stop:
            found.append(Extent(part, start, stop))
    return found


def _cut(at: int, size: int) -> int:
    """Return where a part of `size` bytes is cut: at byte `at`, or a little before."""
    return size if at >= size else max(0, at) // ALIGN_BYTES * ALIGN_BYTES


def fold(digests: Digests) -> int:
    """Return one number for the digests of a state's parts, from 1 to 2**63 - 1."""
    encoded = json.dumps(sorted(digests.items())).encode()
    # Never 0, which stands for a state that was not compared.
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big") % (2**63 - 1) + 1


@dataclass(frozen=True)
class Split:
    """The groups of workers whose states agree, when not all do; `split_of` returns it."""

    groups: tuple[tuple[int, ...], ...]  # two or more, in rank order, the largest first

    @property
    def odd(self) -> tuple[int, ...]:
        """The workers outside the largest group, ascending; empty if that is no majority."""
        most, *others = self.groups
        rest = tuple(sorted(worker for group in others for worker in group))
        return rest if len(most) > len(rest) else ()

    @property
    def source(self) -> int:
        """The id of the worker that sends its state to the odd ones: the largest group's first."""
        return self.groups[0][0]


def split_by_digest(states: Iterable[tuple[int, int]]) -> Split | None:
    """Return the groups of workers whose states agree; None if all workers agree."""
    groups: dict[int, list[int]] = {}
    for worker, state in states:
        if state:  # 0: it was not compared
            groups.setdefault(state, []).append(worker)
    if len(groups) < 2:
        return None
    return Split(tuple(tuple(g) for g in sorted(groups.values(), key=lambda g: -len(g))))


def split_of(records: StepRecords) -> Split | None:
    """Return the groups of workers whose states agree, by the step records; None if all agree."""
    if not records.differ_in("state"):
        return None
    return split_by_digest(zip(records.values("worker"), records.values("state"), strict=True))


def different_rate(rates: Mapping[int, Rates], is_value: bool = False) -> str:
    """Return the first name, in the order of the first worker, on whose value workers disagree."""
    if not rates:
        return ""
    first, *others = rates.values()
    known = (name for name in first if all(name in other for other in others))
    asked = (name for name in known if name.startswith(STEP_VALUE) == is_value)
    return next((n for n in asked if any(other[n] != first[n] for other in others)), "")


def different_rates(rates: Mapping[int, Rates], groups: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Return a clause about the first rate on which groups of workers differ, and what to do."""
    if not (rate := different_rate(rates)):
        return "", ""

    def each(name: str, digits: int) -> str:
        return " and ".join(f"{rates[g[0]][name]:.{digits}g} on {names(g)}" for g in groups)

    clause = f"the {rate} is {each(rate, 6)}"
    if value := different_rate(rates, is_value=True):
        return f"{clause}; the {value} is {each(value, 9)}", VALUE_ADVICE
    return clause, ""


def first_difference(tables: Mapping[int, Digests]) -> str:
    """Return the name of the first part (tensor or value) of the state on which workers differ."""
    first, *others = tables.values()
    for name in first:
        if any(other.get(name) != first[name] for other in others):
            return name
    return next((name for other in others for name in other if name not in first), "its parts")


def reason(
    found: Split,
    step: int,
    tables: Mapping[int, Digests],
    rates: Mapping[int, Rates] = NO_RATES,
    advice: str = ADVICE,
    unit: str = "step",
) -> str:
    """Return a message that says which states differ, in what, the likely cause, and what to do."""
    _, cure = different_rates(rates, found.groups)
    return f"{_difference(found, step, tables, rates, unit)}. {cure or advice}"


def resynced(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """Return a message that says which states differ, and whose state the odd workers get."""
    verb = "gets" if len(found.odd) == 1 else "get"
    how = f"{names(found.odd)} {verb} the state of w{found.source}"
    return f"{_difference(found, step, tables)}; {how}. {ADVICE}"


def undecided(found: Split, step: int, tables: Mapping[int, Digests]) -> str:
    """Return a message that says which states differ, and that no majority agrees on a state."""
    return (
        f"{_difference(found, step, tables)}; no majority agrees, so nobody is resynced. {ADVICE}"
    )


def _difference(
    found: Split,
    step: int,
    tables: Mapping[int, Digests],
    rates: Mapping[int, Rates] = NO_RATES,
    unit: str = "step",
) -> str:
    """Return the clause that says which states differ, after which step, and in what first."""
    if found.odd:
        who = f"the state of {names(found.odd)} differs from that of {names(found.groups[0])}"
    else:
        who = f"the states of {' and '.join(names(group) for group in found.groups)} differ"
    if clause := different_rates(rates, found.groups)[0]:
        return f"{who} after {unit} {step}: {clause}"
    return f"{who} after {unit} {step}, first in {first_difference(tables)}"


# ------------------------------------------------------------
# Decide which newcomers must leave a job because their states differ from the other workers'.
#
# A newcomer receives the job's state. The state does not contain what a script keeps in functions,
# closures and counters of its own: a schedule that is computed from the number of workers, or from
# a counter that begins at 0, gives a newcomer another learning rate than the others have, and the
# models drift apart. So the whole state is compared after a newcomer's first step, and later a
# group of it after each step. If the workers that were there before agree with each other, each
# newcomer that differs from them leaves (`newcomers_that_leave`), and the others complete the step
# without it. A worker counts as a newcomer for `TRIAL_STEPS` (500) steps.


TRIAL_STEPS = 500  # a worker counts as a newcomer so long; schedules may differ late

SCRIPT_CAUSE = (
    "No state carries what a script computes from hvd.size() or counts by itself, as in "
    "Adam(rate * hvd.size()): let the rate be a variable of the state, or set it in a callback of "
    "state.register_reset_callbacks. EDL_STATE_CHECK_STEPS=0 turns this check off"
)

CAUSE = (
    "No state carries what a script computes in functions, closures and counters of its own: use "
    "edl.step(), edl.track or edl.LRSchedule"
)


@dataclass(frozen=True)
class StateReport:
    """The report that each worker sends to the others about its state when states differ."""

    # the name of each tensor or value of the state that was compared -> its digest
    digests: Digests
    rates: Rates  # the worker's learning rates
    joined_after: int | None = None  # the step; None: no newcomer, or none any more (`on_trial`)
    inside: bool = False  # it joined inside an epoch, and may do so again at the start of one


def on_trial(joined_after: int | None, step: int) -> int | None:
    """Return `joined_after` while the worker counts as a newcomer, else None."""
    if joined_after is None or step - joined_after > TRIAL_STEPS:
        return None
    return joined_after


def newcomers_that_leave(found: Split, said: Mapping[int, StateReport]) -> tuple[int, ...]:
    """Return the ids of the newcomers that leave because their states differ from the others'."""
    old = [[w for w in group if said[w].joined_after is None] for group in found.groups]
    holding = [number for number, workers in enumerate(old) if workers]
    if len(holding) != 1:  # the older workers disagree, or there are none
        return ()
    others = (group for number, group in enumerate(found.groups) if number != holding[0])
    return tuple(sorted(worker for group in others for worker in group))


def why_they_leave(
    leaving: tuple[int, ...],
    step: int,
    said: Mapping[int, StateReport],
    cause: str = CAUSE,
    unit: str = "step",
    back: bool = False,
) -> str:
    """Return a message that says which newcomers leave, what differs first, and what to do."""
    first = leaving[0]
    staying = [worker for worker in said if worker not in leaving]
    steps = sorted({said[worker].joined_after or 0 for worker in leaving})
    when = " and ".join(map(str, steps))
    pair = {staying[0]: said[staying[0]], first: said[first]}  # one of each; at least one stays
    what = first_difference({worker: one.digests for worker, one in pair.items()})
    rates = {worker: one.rates for worker, one in pair.items()}
    clause, cure = different_rates(rates, [[first], [staying[0]]])
    what = clause or f"first in {what}"
    count = len(leaving)
    state = verb(count, "its state differs", "their states differ")
    return (
        f"{names(leaving)} joined after {unit} {when}, and after {unit} {step} {state} from that "
        f"of {names(staying)}: {what}. {cure or cause}. "
        f"{names(leaving)} {what_follows(count, back)}"
    )


def what_follows(leaving: int, back: bool) -> str:
    """Return the clause that says what becomes of `leaving` newcomers, and of the job."""
    if back:
        return (
            f"{verb(leaving, 'steps', 'step')} back; from now on newcomers join this job at the "
            "start of an epoch, where the counts of a script begin"
        )
    return f"{verb(leaving, 'ends', 'end')}, and the others train on"


# ------------------------------------------------------------
# Decide whether the workers' data sets give the same samples, by digests of a few of them.


DATA = "sample "  # how the names of the digests of samples begin; no part of a model has a space
UNSTABLE = -1  # the digest of a sample that is not the same each time

ALIKE = (
    ": samples would be trained twice or never. Build and order the data set alike on all workers: "
    "seed what it is drawn from (random.seed(0), torch.manual_seed(0)), without the rank or the "
    "host. EDL_STATE_CHECK_STEPS=0 turns this check off"
)

BY_EPOCH = (
    ": it has not run the epochs before. Let the order of an epoch follow from the epoch, as by "
    "random.Random(epoch).sample(range(n), n), and not from the order before, as by "
    "random.shuffle(order). {who}, and the others train on"
)


def samples_of(table: Digests) -> Digests:
    return {name: digest for name, digest in table.items() if name.startswith(DATA)}


def without_samples(table: Digests) -> Digests:
    """Return those digests of `table` that are of the model and the other state."""
    return {name: digest for name, digest in table.items() if not name.startswith(DATA)}


def are_comparable(tables: Mapping[int, Digests]) -> bool:
    """Return whether all workers have read the same samples, and each got the same each time."""
    first = next(iter(tables.values()))
    return bool(first) and all(
        table.keys() == first.keys() and UNSTABLE not in table.values() for table in tables.values()
    )


def why_data_differ(
    odd: tuple[int, ...],
    others: tuple[int, ...],
    epoch: int,
    tables: Mapping[int, Digests],
    said: Mapping[int, StateReport],
    leaving: bool,
) -> str:
    """Return the message: whose data differ, in which sample, and what to do."""
    mine, theirs = tables[odd[0]], tables[others[0]]
    name = next(each for each in mine if mine[each] != theirs[each])
    joined = f" joined after step {said[odd[0]].joined_after}, and" if leaving else ""
    ends = BY_EPOCH.format(who=f"{names(odd)} {verb(len(odd), 'ends', 'end')}")
    return (
        f"{names(odd)}{joined} {verb(len(odd), 'has', 'have')} another {name} in "
        f"{verb(len(odd), 'its', 'their')} data set than {names(others)} in epoch {epoch} "
        f"({counted(len(mine), 'sample')} compared){ends if leaving else ALIKE}"
    )


# ------------------------------------------------------------
# Decide what follows when the rows of one table show workers at different points of the script.
#
# One worker calls `edl.mean` where another takes the next batch, has left the epoch, or has ended:
# each would wait for the other for ever. All workers see it in the same table, and decide alike
# (`find_mismatch`). Who was there first is right: a count of the script's own begins at 0 in a
# worker that joined later. If the first ones differ among themselves, the script is wrong, and the
# job ends. A newcomer that joined at the start of an epoch, and still exchanges numbers at other
# steps, has a count that no epoch sets back (`global_step += 1`). Any other newcomer would have
# one, too, so it stays, and the exchange is among those that call it.


APART = 2**62  # in the field `exchange`: some workers may make this call without the others
CALL_BITS = 2**33 - 1  # of the field `exchange`: what is called; above are sizes that must be equal

CURE = (
    "what a script counts itself begins at 0 in a newcomer; loader.batch_index (in TensorFlow that "
    "of edl.Dataset) and edl.step() are the job's"
)


@dataclass(frozen=True)
class Mismatch:
    """Which workers go another way than those that joined first."""

    leaving: tuple[int, ...] = ()  # in rank order; empty: the first ones differ themselves
    back: bool = False  # they join again at the start of an epoch, because they joined inside one
    over: bool = False  # the first ones have ended the training, so it is over for all
    ended: bool = False  # one of `leaving` has ended it
    apart: bool = False  # nobody leaves: the exchange is among those that call it


def find_mismatch(records: StepRecords) -> Mismatch | None:
    """Return who leaves, by the rows of all workers; None: all are at the same point."""
    if not any(records.differ_in(name) for name in ("stop", "epoch", "exchange", "site")):
        return None  # as in nearly every step
    first = records.column("joined") == records.column("joined").min()
    ended, epochs = records.column("stop") >= Stop.FINISHED, records.values("epoch")
    rows = zip(ended.tolist(), epochs, records.values("exchange"), strict=True)
    points = [(1, 0, 0) if over else (0, epoch, call & CALL_BITS) for over, epoch, call in rows]
    of_first = {point for point, is_first in zip(points, first, strict=True) if is_first}
    if len(of_first) > 1:
        return Mismatch()
    out = [at for at, point in enumerate(points) if point not in of_first]
    apart = (records.column("exchange") & APART > 0).tolist()
    called = {(epoch, call) for (_, epoch, call), calls in zip(points, apart, strict=True) if calls}
    at_batch = {
        epoch for (over, epoch, _), calls in zip(points, apart, strict=True) if not (over or calls)
    }
    # At an epoch's end the others are at the first batch of the next one, or have ended.
    near = len(called) == 1 and all(0 <= epoch - min(called)[0] <= 1 for epoch in at_batch)
    if out and near and len(at_batch) < 2:
        out = [at for at in out if records.values("inside")[at]]
        if not out:
            return Mismatch(apart=True)
    calls = {*records.column("exchange")[first].tolist()}
    if not out and len(calls) == 1:  # means of other numbers, for one
        out = [at for at, call in enumerate(records.values("exchange")) if call not in calls]
    if not out:
        # Lines count where workers have met before: `if rank == 0: mean(x) else: mean(x)` has two.
        sites = {*records.column("site")[first].tolist()}
        site = sites.pop() if len(sites) == 1 else 0
        out = [at for at, other in enumerate(records.values("site")) if abs(other) != site > 0]
    if not out:
        return None
    gone, over = bool(ended[out].any()), bool(ended[first].any())
    back = bool(records.column("inside")[out].all()) and not (gone or over)
    return Mismatch(tuple(records.values("worker")[at] for at in out), back, over, gone)


def why_apart(records: StepRecords) -> str:
    """Return a sentence that says who exchanges numbers without whom, and what to do."""
    callers: list[int] = []
    others: list[int] = []
    for worker, call in zip(records.values("worker"), records.values("exchange"), strict=True):
        (callers if call & APART else others).append(worker)
    return (
        f"after step {records[0].step} of the job {names(callers)} exchanged numbers, as by "
        f"edl.mean(), and {names(others)} did not: {CURE}. Such an exchange is among its callers"
    )


def why_mismatch(found: Mismatch, records: StepRecords, doing: Mapping[int, str]) -> str:
    """Return a sentence that says what each worker does, and what follows."""
    step, workers = records[0].step, records.values("worker")
    groups: dict[str, list[int]] = {}
    for worker in workers:
        groups.setdefault(doing[worker], []).append(worker)
    said = " while ".join(f"{names(them)} {what}" for what, them in groups.items())
    if not found.leaving:
        return (
            f"after step {step} of the job {said}: they would wait for each other for ever. All "
            "workers must make the same calls after the same steps, not by their rank or by what "
            "one of them sees"
        )
    who, many = names(found.leaving), len(found.leaving)
    joined = dict(zip(workers, records.values("joined"), strict=True))
    when = " and ".join(map(str, sorted({joined[worker] - 1 for worker in found.leaving})))
    head = f"{who} joined after step {when}, and after step {step} {said}"
    if found.over:
        return (
            f"{head}: the job has trained to its end with those that were there before, and "
            f"{who} {verb(many, 'ends', 'end')} with it"
        )
    cause = CURE
    if found.ended:
        cause = "a length that follows from hvd.size() or len(loader) is another one in a newcomer"
    return f"{head}: {cause}. {who} {what_follows(many, found.back)}"
