"""A million interleavings: seeded jobs on the loopback ring, each proven by the counting model.

    make interleavings [ARGS="--count 1000000 --first 1 --json FILE"]

A seed decides everything: how many workers there are, what they train, in which order their threads
run, who is killed, cut off, frozen, delayed or loses its session at which point of its life, and
what people ask for meanwhile. So ``--first SEED --count 1`` runs a failed one again. The workers,
their switching and the leader's decisions are edl's own; see ``tests/property/scenarios.py``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scenarios import FAULTS, POINTS, Change, Fault, Scenario

from edl.errors import EdlError
from edl.testing.counting import Counting

AT_ONCE = 100  # seeds that a process takes
TOLD_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """How one job went. ``wrong``: what was not as it must be."""

    seed: int
    state: str
    generations: int = 0
    repairs: int = 0
    wrong: str = ""


def scenario(seed: int) -> Scenario:
    chance = random.Random(seed)
    np = chance.randint(1, 4)
    script = Counting(
        samples=chance.choice([7, 12, 24]),
        batch_size=chance.choice([1, 2, 4]),
        prefetch_batches=chance.randint(0, 1),
        exchange_every=chance.choice([0, 0, 1, 2]),
        accumulated=chance.choice([1, 1, 1, 2]),
    )
    if seed % 3 == 0:  # not drawn, so a seed is what it was
        script = replace(script, max_global_batch=2 * script.batch_size)
    elif seed % 3 == 1:
        script = replace(script, batch_size=1 + seed % 7, aligned=True)
    elif seed % 6 == 5:
        script = replace(script, logical=1 + seed // 6 % 8, accumulated=1)
    faults = tuple(
        Fault(chance.randrange(np + 1), chance.randint(1, POINTS // 2), chance.choice(FAULTS))
        for _ in range(chance.choice([1, 1, 2, 3]))
    )
    changes = tuple(_change(chance) for _ in range(chance.choice([0, 1, 2])))
    return Scenario(seed, np, script=script, faults=faults, changes=changes)


def _change(chance: random.Random) -> Change:
    step = chance.randint(0, 8)
    kind = chance.choice(["scale", "scale", "scale", "drain", "stop", "zookeeper"])
    if kind == "scale":
        return Change(step, a=chance.randint(0, 3), b=chance.randint(0, 2))
    if kind == "drain":
        return Change(step, drain=chance.randint(0, 3))
    if kind == "stop":
        return Change(step, stop=True)
    return Change(step, zookeeper_s=chance.choice([0.2, 2.0, 20.0]))


def run(seed: int) -> Outcome:
    one = scenario(seed)
    try:
        job = one.run()
    except (AssertionError, EdlError) as error:
        return Outcome(seed, "wrong", wrong=f"{one}\n{error!r}")
    written = job.memory.generations
    repairs = sum(generation.repairs for generation in written)
    return Outcome(seed, str(job.memory.job.state), len(written), repairs)


def outcomes(first: int, count: int, processes: int) -> Iterator[Outcome]:
    seeds = range(first, first + count)
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds, AT_ONCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    began = told = time.monotonic()
    states: Counter[str] = Counter()
    generations = repairs = 0
    wrong: list[Outcome] = []
    for outcome in outcomes(args.first, args.count, args.processes):
        states[outcome.state] += 1
        generations += outcome.generations
        repairs += outcome.repairs
        if outcome.wrong:
            wrong.append(outcome)
            print(f"seed {outcome.seed}: {outcome.wrong}", flush=True)
        if time.monotonic() - told > TOLD_S:
            told = time.monotonic()
            print(f"{told - began:.0f} s: {states.total()} of {args.count}", flush=True)
    figures = {
        "first": args.first,
        "jobs": states.total(),
        "ended": dict(sorted(states.items())),
        "generations": generations,
        "repairs": repairs,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "wrong": [asdict(one) for one in wrong[:20]],
    }
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(
        f"interleavings: {states.total()} jobs, {generations} generations, {repairs} of them "
        f"repairs, in {figures['minutes']} minutes; {len(wrong)} went wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
