"""Decide whether the workers' data sets give the same samples, by digests of a few of them."""

from __future__ import annotations

from collections.abc import Mapping

from edl.core.plural import counted, names, verb
from edl.core.step.newcomers import StateReport
from edl.core.step.state_check import Digests

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
