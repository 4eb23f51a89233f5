"""`edl policy`: set, switch off and explain the policy, a rule by which a job finds its size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JsonOption, ZooKeeperOption
from edl.cli.figure import draw_history
from edl.cli.tables import print_table
from edl.client import Job
from edl.client.changes import Explanation, stands
from edl.config import read_policy
from edl.errors import UsageError
from edl.figures import check_figure
from edl.policy.stragglers import Times

ACTIONS = ("show", "set", "off", "resume", "explain", "plot")
FILES = ("set", "plot")  # that need a file
SHOWING = ("show", "explain")


def policy(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="show | set FILE | off | resume | explain | plot FILE [JOB]",
            help="The job may be left out when one is running; it may also stand first.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a job find its own number of workers by a rule, and see what the rule decides from.

    `edl scale` suspends the rule for a time (`hold` in the file); `resume` ends that.
    """
    job, action, file = _read(words or [])
    if as_json and action not in SHOWING:
        raise UsageError(f"--json is for {' and '.join(SHOWING)}; leave it out")
    target = Job(job, zookeeper)
    if action == "set":
        assert file is not None
        text, source = read_policy(file, "edl policy set")
        typer.echo(f"policy of {file}: {stands(target.set_policy(text, source))}")
    elif action == "off":
        target.switch_policy_off()
        typer.echo("the policy is off; the job keeps its size")
    elif action == "resume":
        target.resume_policy()
        typer.echo("the policy decides again")
    elif action == "plot":
        assert file is not None
        check_figure(file, "plot")
        draw_history(target.history(), file)
        typer.echo(f"{file} is written")
    else:
        _show(target.explain_policy(), whole=action == "explain", as_json=as_json)


def _read(words: list[str]) -> tuple[str | None, str, Path | None]:
    """Return the job, the action and the file that the words of the command line name."""
    job, rest = None, words
    if words and (words[0] not in ACTIONS or (len(words) > 1 and words[1] in ACTIONS)):
        job, rest = words[0], words[1:]
    action = rest[0] if rest else "show"
    needed = 2 if action in FILES else 1
    if job is None and len(rest) == needed + 1:
        job, rest = rest[-1], rest[:-1]
    if action not in ACTIONS or (rest and len(rest) != needed):
        said = " ".join(words) or "nothing"
        raise UsageError(
            f"{said!r} is not understood; write edl policy show, set FILE, off, resume, explain or "
            "plot FILE, and then the job, if there are several"
        )
    return job, action, Path(rest[1]) if action in FILES else None


def _show(found: Explanation, whole: bool, as_json: bool) -> None:
    """Print the policy of a job and the measurements that it decides from."""
    if as_json:
        typer.echo(json.dumps(_figures(found)))
        return
    held_s = found.learned.held_s(found.policy)
    typer.echo(f"policy of {found.policy.source}: {stands(found.policy, held_s)}")
    if found.says:
        typer.echo(found.says)
    if not whole:
        typer.echo(found.policy.text.rstrip())
        return
    table = Table(box=box.SIMPLE)
    for title in ("workers", "samples/s", "steps"):
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("model" if found.modelled else "the next size", overflow="fold")
    more = {verdict.fewer: verdict.why for verdict in found.verdicts}
    more |= {np: f"{rate:.1f}" for np, rate in found.modelled.items()}
    measured = dict(found.learned.seen)
    for np in sorted({*measured, *found.modelled}):
        seen = measured.get(np)
        figures = (f"{seen.samples_per_s:.1f}", f"{seen.steps}") if seen else ("", "")
        table.add_row(f"{np} *" if np == found.np else f"{np}", *figures, more.get(np, ""))
    if found.learned.seen:
        print_table(table)
    if found.learned.times:
        print_table(_times(found.learned.times))


def _times(times: Sequence[Times]) -> Table:
    """Return a table of the milliseconds that each worker spends in the parts of a step."""
    table = Table(box=box.SIMPLE)
    for title in ("worker", "host", "samples", "data ms", "compute ms", "reduce ms"):
        left = title in ("worker", "host")
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for one in times:
        parts = (one.data_s, one.compute_s, one.reduce_s)
        row = (f"{1000 * seconds:.1f}" for seconds in parts)
        table.add_row(f"w{one.worker}", one.host, f"{one.samples:.0f}", *row)
    return table


def _figures(found: Explanation) -> dict[str, object]:
    """Return the policy of a job, and the measurements that it decides from, as JSON values."""
    return {
        "source": found.policy.source,
        "text": found.policy.text,
        "on": found.policy.is_on,
        "off": found.policy.off,
        "held_until_s": found.policy.held_until_s,
        "np": found.np,
        "says": found.says,
        "seen": [
            {"np": np, "samples_per_s": seen.samples_per_s, "steps": seen.steps}
            for np, seen in found.learned.seen
        ],
        "modelled": {str(np): rate for np, rate in found.modelled.items()},
        "times": [one.to_json() for one in found.learned.times],
        "verdicts": [
            {"fewer": one.fewer, "more": one.more, "pays": one.pays, "why": one.why}
            for one in found.verdicts
        ],
    }
