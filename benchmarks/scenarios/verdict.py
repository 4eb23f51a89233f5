"""What of a played scenario is not as it has to be: pure, and in words for a table."""

from __future__ import annotations

from benchmarks.scenarios.play import SAMPLES, Played
from benchmarks.scenarios.table import A, B, Expected, Line, Scenario


def edl_problems(scenario: Scenario, played: Played) -> list[str]:
    """:func:`problems` with edl, and whether each sample was counted once an epoch."""
    return problems(scenario.edl, played) + _count_problems(scenario, played)


def problems(expected: Expected, played: Played) -> list[str]:
    """Everything that differs from ``expected``, the worst first; empty: the scenario passed."""
    found = []
    reported = played.lines
    if played.code is None:
        found.append(f"hangs: horovodrun did not end in {played.seconds:.0f} s")
    elif expected.says:
        if played.code == 0:
            found.append("horovodrun ended with 0")
        if expected.says not in played.output:
            found.append(f"the output does not say {expected.says!r}")
    elif played.code != 0:
        found.append(f"horovodrun ended with {played.code}")
    # Of two hosts that are there at the start, the driver takes any one first: it reads a set.
    first = reported[0]["host"] if reported else A
    lines = tuple(
        Line(line["start_rank"], line["size"], A if line["host"] == first else B)
        for line in reported
    )
    for epoch, (line, wanted) in enumerate(zip(lines, expected.lines, strict=False)):
        if line != wanted:
            found.append(f"epoch {epoch} ended with {_say(line)} in place of {_say(wanted)}")
    if len(lines) != len(expected.lines):
        found.append(f"{len(lines)} epochs ended in place of {len(expected.lines)}")
    found += [f"this outlived horovodrun: {command}" for command in played.left]
    return found + _rendezvous_problems(expected, played)


def _rendezvous_problems(expected: Expected, played: Played) -> list[str]:
    """Return problems with the rings at the ends of the epochs.

    The ring must be another one where hosts changed or a worker failed, and the same one elsewhere.
    Stock's number is how often it has begun to train, edl's is the generation.
    """
    found = []
    lines = expected.lines[: len(played.lines)]
    for epoch in range(1, len(lines)):
        before, after = (played.lines[e]["rendezvous"] for e in (epoch - 1, epoch))
        changes = lines[epoch] != lines[epoch - 1] or epoch in played.struck
        if changes != (after > before):
            found.append(f"epochs {epoch - 1} and {epoch} ended in the rings {before} and {after}")
    return found


def _count_problems(scenario: Scenario, played: Played) -> list[str]:
    """Whether edl's workers counted each sample once in each epoch, all alike."""
    if scenario.edl.says:
        return []
    found = [f"{report['pid']}: {wrong}" for report in played.reports for wrong in report["wrong"]]
    whole = {str(scenario.epochs): SAMPLES}
    found += [
        f"counted {report['counts']}" for report in played.reports if report["counts"] != whole
    ]
    if len(played.reports) != scenario.edl.lines[-1].size:
        found.append(f"{len(played.reports)} workers trained to the end")
    if len({report["w_sha256"] for report in played.reports}) > 1:
        found.append("the workers' parameters differ")
    return found


def _say(line: Line) -> str:
    return f"a ring of {line.size}, led by start rank {line.start_rank} on {line.host}"
