"""The page benchmarks/results/cluster.md, and the raw figures beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.cluster_jobs.costs import Costs
from benchmarks.cluster_jobs.live import LiveJob, LiveRun, PolicyChoice
from benchmarks.cluster_jobs.profiling import Profiles
from benchmarks.cluster_jobs.workload import BATCH, HOSTS, MOST, SLOTS, WorkloadJob
from benchmarks.page import Section, markdown
from edl.simulator.results import Result

TITLE = "Eight jobs on a live cluster, beside the simulator"
COMMAND = "make cluster-jobs"
FIGURE = "cluster.svg"
LIMIT = 0.10  # of the mean difference between live and simulated completion times


@dataclass(frozen=True)
class Measured:
    """All that was measured.

    Attributes:
        machine: where.
        jobs: the jobs of all runs.
        profiles: the step times of the jobs.
        costs: what starts, changes of size and ends cost.
        runs: the live runs, one for each policy.
    """

    machine: str
    jobs: Sequence[WorkloadJob]
    profiles: Profiles
    costs: Costs
    runs: Sequence[LiveRun]


def differences(run: LiveRun, simulated: Result) -> list[float]:
    """Return for each job by how much its simulated completion time differs from its live one.

    The differences are fractions of the live times, without signs.
    """
    pairs = zip(run.jobs, simulated.jobs, strict=True)
    return [abs(one.jct_s - job.jct_s) / job.jct_s for job, one in pairs]


def problems(measured: Measured, results: Sequence[Result]) -> list[str]:
    """Return what is not as it should be, a sentence each."""
    found = [
        f"{run.policy.name}, {job.name}: {job.problem}"
        for run in measured.runs
        for job in run.jobs
        if job.problem
    ]
    for run, result in zip(measured.runs, results, strict=True):
        mean = fmean(differences(run, result))
        if mean > LIMIT:
            found.append(f"{run.policy.name}: completion times differ by {mean:.1%} on average")
    return found


def page(measured: Measured, results: Sequence[Result]) -> str:
    """Return the text of the page.

    Args:
        measured: what was measured.
        results: the results of the simulator, in the order of the runs.
    """
    sections = [
        _policies(measured, results),
        _by_job(measured, results),
        _jobs(measured),
        _costs(measured.costs),
    ]
    machine = f"Machine: {measured.machine}."
    text = markdown(TITLE, COMMAND, f"{machine}\n\n{_how(measured)}", sections)
    return f"{text}\n## Slots over time\n\n{GANTT}\n\n![{GANTT}]({FIGURE})\n"


GANTT = (
    "Each row is a job. The darker and higher its bar, the more slots it had; a thin grey line: it "
    "waited. Dashed lines: something was killed."
)


def _how(measured: Measured) -> str:
    kinds = ", ".join(dict.fromkeys(job.framework for job in measured.jobs))
    return (
        f"{len(measured.jobs)} jobs ({kinds}) arrive on a cluster of {len(HOSTS)} hosts with "
        f"{SLOTS} slots each. The hosts are network namespaces of this machine. Each job has 1 to "
        f"{MOST} workers and trains the [counting model](../../docs/explanation/guarantees.md): at "
        "its end the parameters of all of its workers say how often each sample was counted. A "
        "step waits for a time that depends on the number of workers only, so that jobs scale in "
        "different ways on two processors. The cluster has two controllers. In each run the "
        "leading one, an `edl host` and an agent are killed (`kill -9`); killed controllers and "
        "`edl host` are started again after 3 s.\n\n"
        "The simulator gets the same submissions, the measured step times and the measured costs "
        "below, and the same policy. Policies know the step times from the start, in both: the "
        "jobs' manifests supply them."
    )


def _policies(measured: Measured, results: Sequence[Result]) -> Section:
    head = [
        "policy",
        "mean completion time, live",
        "simulated",
        "difference of the means",
        "mean difference by job",
        "last end, live",
        "simulated",
        "runs",
        "jobs with exact counts",
        "killed, at",
    ]
    rows = []
    for run, result in zip(measured.runs, results, strict=True):
        live_s, simulated_s = fmean(job.jct_s for job in run.jobs), result.mean_jct_s
        rows.append(
            [
                _named(run.policy),
                f"{live_s:.1f} s",
                f"{simulated_s:.1f} s",
                f"{(simulated_s - live_s) / live_s:+.1%}",
                f"**{fmean(differences(run, result)):.1%}**",
                f"{max(job.ended_s for job in run.jobs):.0f} s",
                f"{max(job.end_s for job in result.jobs):.0f} s",
                f"{sum(job.runs for job in run.jobs)}",
                f"{sum(not job.problem for job in run.jobs)} of {len(run.jobs)}",
                ", ".join(f"{what} {at_s:.0f} s" for at_s, what in run.kills),
            ]
        )
    notes = [
        (
            "The mean difference by job is the mean, over the jobs, of the difference between the "
            "live and the simulated completion time, divided by the live one, without its sign; "
            f"goal: at most {LIMIT:.0%}."
        ),
        (
            "Runs: a job that the policy preempts stops with a checkpoint, and starts again as "
            "another run."
        ),
        "Counts are exact if each sample was counted once in each epoch, on all workers alike.",
    ]
    return Section("Completion times", "From the submission to the end.", head, rows, notes)


def _by_job(measured: Measured, results: Sequence[Result]) -> Section:
    head = ["job", *(f"{run.policy.name}" for run in measured.runs)]
    rows = [
        [name, *(_cell(*pair) for pair in pairs)]
        for name, pairs in _pairs_by_job(measured.runs, results)
    ]
    how = "Completion times in seconds: live, simulated, and by how much the latter differs."
    return Section("By job", how, head, rows)


def _pairs_by_job(
    runs: Sequence[LiveRun], results: Sequence[Result]
) -> Iterable[tuple[str, list[tuple[LiveJob, float]]]]:
    """Yield for each job its live result and its simulated completion time, by policy."""
    for number, job in enumerate(runs[0].jobs):
        pairs = zip(runs, results, strict=True)
        yield job.name, [(run.jobs[number], one.jobs[number].jct_s) for run, one in pairs]


def _cell(job: LiveJob, simulated_s: float) -> str:
    difference = (simulated_s - job.jct_s) / job.jct_s
    return f"{job.jct_s:.1f}, {simulated_s:.1f} ({difference:+.0%})"


def _jobs(measured: Measured) -> Section:
    head = ["job", "submitted at", "requests", "scales", "steps"]
    head += [f"step with {n}" for n in range(1, MOST + 1)]
    rows = []
    for job in measured.jobs:
        step_s = measured.profiles[job.name]
        times = [f"{step_s[n]:.3f} s" for n in range(1, MOST + 1)]
        slots = f"{job.np} slot{'s' * (job.np > 1)}"
        rows.append(
            [job.name, f"{job.arrival_s:.0f} s", slots, job.scaling.name, f"{job.steps}", *times]
        )
    how = (
        f"A step trains {BATCH} samples. `edl profile` measured the step times, before all runs, "
        "with each job alone on a host."
    )
    return Section("The jobs", how, head, rows)


def _costs(costs: Costs) -> Section:
    said = {
        "start": "a start: what the job loses, from the decision on",
        "prepare": "more slots: until the new workers are there, while the others train",
        "join": "more slots: the job stops when they come",
        "leave": "fewer slots: the job stops",
        "end": "the end: from the last step until the cluster knows of it",
    }
    rows = [[said[name], f"{getattr(costs, name):.2f} s", f"{costs.counts[name]}"] for name in said]
    how = "Measured with four short jobs, before all runs."
    return Section("What changes cost", how, ["what", "mean", "measured"], rows)


def _named(policy: PolicyChoice) -> str:
    """Return the policy with its parameters as Markdown, like "`jsa`, `interval_s` 30"."""
    return ", ".join([f"`{policy.name}`", *(f"`{k}` {v}" for k, v in policy.parameters.items())])


def to_json(measured: Measured) -> dict[str, Any]:
    """Return what was measured as JSON values, without the single steps."""
    runs = [{**asdict(run), "marks": {}} for run in measured.runs]
    return {
        "machine": measured.machine,
        "jobs": [job.name for job in measured.jobs],
        "profiles": measured.profiles,
        "costs": asdict(measured.costs),
        "runs": runs,
    }


def from_json(values: dict[str, Any], known: Sequence[WorkloadJob]) -> Measured:
    """Return what :func:`to_json` has made JSON values of.

    Args:
        values: these values.
        known: the jobs of the workload.
    """

    def pairs(changes: list[Any]) -> tuple[Any, ...]:
        return tuple((at_s, value) for at_s, value in changes)

    runs = []
    for run in values["runs"]:
        jobs = tuple(
            LiveJob(**{**job, **{key: pairs(job[key]) for key in ("targets", "slots", "rings")}})
            for job in run["jobs"]
        )
        policy, kills = PolicyChoice(**run["policy"]), pairs(run["kills"])
        runs.append(LiveRun(policy, jobs, kills, {}, run["begin_s"]))
    return Measured(
        values["machine"],
        [job for job in known if job.name in values["jobs"]],
        {
            name: {int(np): each_s for np, each_s in step_s.items()}
            for name, step_s in values["profiles"].items()
        },
        Costs(**values["costs"]),
        runs,
    )
