"""Say in sentences why something happened to a job, and what to do, as far as events tell it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.dashboard.tense import tenses
from edl.core.events import EndedDetails
from edl.core.learning_curve import LossSpike, short
from edl.core.plural import verb

THEIR_HOSTS = "their hosts"  # in place of the name of one


@dataclass(frozen=True)
class Cause:
    """The cause of an incident, as far as it is known, with advice."""

    why: str  # why it happened, in a sentence or two
    advice: str  # what to do, in a sentence or two


def how_it_ended(code: int | None) -> str:
    """Return how a process has ended, by its exit `code`; None: not known."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def of_an_end(details: EndedDetails) -> Cause:
    """Return why a worker's process has ended, by its exit code, and what to do."""
    where = THEIR_HOSTS if details.host == THEIR_HOSTS else f"host {details.host}"
    logs = f"`edl logs JOB {details.worker}`" if details.worker else "`edl logs JOB`"
    code = details.exit_code
    if code == -signal.SIGKILL:
        return Cause(
            "Signal 9 came from outside of edl: from a person, from a scheduler, or from the "
            f"kernel because the memory of {where} was used up.",
            f"If nobody killed it, look for lack of memory on {where}: `dmesg -T | grep -i oom`. "
            f"Read its last lines with {logs}. A replacement starts by itself.",
        )
    if code is not None and code < 0:
        crashed = -code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)
        why = "Native code of a library has crashed" if crashed else "The signal came from outside"
        return Cause(
            f"{why}; edl has not sent it.",
            f"Read its last lines with {logs}. A replacement starts by itself; if it ends in the "
            "same way, its slot is disabled after some tries.",
        )
    said = f": {details.termination_message}" if details.termination_message else ""
    return Cause(
        f"Its script has ended by itself{said}.",
        f"Mend what its last lines say: {logs}. A replacement starts by itself; if it fails in the "
        "same way, its slot is disabled after some tries.",
    )


def of_a_silence(host: str, reason: str) -> Cause:
    """Return why a worker was given up that did not answer, and what to do."""
    where = f"host {host}" if host else "its host"
    return Cause(
        f"Its process or all of {where} was stopped (suspended, swapping, out of power), or the "
        f"network to it was cut. What {tenses('is', 'was')} known: {reason}.",
        f"Look whether {where} answers: `ping`, then `ssh`. A replacement starts by itself as soon "
        "as the agent of a host with a free slot answers. Leave the "
        "old process alone: if it runs again, as after `kill -CONT`, it ends by itself.",
    )


def of_a_suspension(host: str) -> Cause:
    """Return why a worker was killed that SIGSTOP had suspended on `host`, and what to do."""
    return Cause(
        "A signal had suspended its process: SIGSTOP (`kill -STOP`), or SIGTTIN when it read from "
        "a terminal. The others waited for it, so its agent killed it.",
        f"Find out what suspends processes on host {host}. A replacement starts by itself. If that "
        "is intended, give it time: EDL_SUSPENDED_S=60 on that host.",
    )


def of_a_loss(spike: LossSpike, saved: Sequence[int] = ()) -> Cause:
    """Return why a loss is not finite or has risen, as far as is known, and what to do."""
    rate, before, top = spike.learning_rate, spike.rate_before, spike.risen_to
    rose = before is not None and spike.rate_step is not None
    good = (spike.rate_step or 0) - 1 if rose else spike.lowest_step
    back = (
        f"Stop the job now (`edl stop JOB`): {_good_checkpoint(good, saved)} into a directory of "
        "its own (`edl checkpoint list` shows the path), and go on from there (`edl run "
        "--resume-from DIRECTORY`), or start again if it is gone,"
        if spike.lowest is not None and good > 1
        else "Stop the job (`edl stop JOB`) and start it again,"
    )
    if rate is None or top is None:
        return Cause(
            "Most often the learning rate is too high; edl does not know it here. Else the data "
            "have changed, or half precision overflows.",
            f"{back} with a lower learning rate.",
        )
    if before is None or spike.rate_step is None:
        return Cause(
            f"The learning rate, {short(rate)}, has not risen before, so it is too high for this "
            "model from the start; or the data are not what the model expects, or half precision "
            "overflows.",
            f"{back} with a tenth of the learning rate ({short(rate / 10)}), and a tenth of that "
            "until the loss falls. If no rate helps, look at the data, and at the loss in float32.",
        )
    scaled = (
        " It rose with the number of workers: the rule that scales it may not hold for this model "
        "(`scaling` in the script or the policy)."
        if spike.np_before != spike.np_after
        else ""
    )
    return Cause(
        f"The likely cause is the learning rate, which rose from {short(before)} to {short(top)} "
        f"at about step {spike.rate_step:,}.{scaled}",
        f"{back} with the learning rate of before ({short(before)}), or one that rises slowly.",
    )


def _good_checkpoint(good: int, saved: Sequence[int]) -> str:
    """Return clauses that say which checkpoint to copy."""
    kept = "only the newest are kept (`keep` in the script, 3 by default)"
    before = [step for step in saved if step <= good]
    if not before:
        return f"checkpoints after step {good:,} are spoiled, and {kept}. Copy one of before"
    last, spoiled = f"that of step {before[-1]:,}", len(saved) - len(before)
    those = verb(spoiled, "the one after it is", f"the {spoiled} after it are")
    later = those if spoiled else "those after it will be"
    return f"the last good checkpoint is {last}, {later} spoiled, and {kept}. Copy it"


WHILE_ZOOKEEPER_IS_AWAY = (
    "On the host where edl has started it, `edl zookeeper start` starts it again with its data, "
    "and `edl zookeeper status` names its log. The job goes on by itself when ZooKeeper answers."
)
"""The end of each advice about a ZooKeeper that does not answer."""

OF_ZOOKEEPER_AWAY = "Let it run again: start the server, give it disk space, or mend the network."

OF_ZOOKEEPER = Cause(
    "The ZooKeeper server was stopped, overloaded or had no disk space, or the network to it was "
    "cut.",
    "Nothing, if it is rare. Else look at the load, the disk and the log of ZooKeeper's hosts "
    "(`edl zookeeper status` for the one that edl has started).",
)


def of_a_slow_worker(worker: str, host: str) -> Cause:
    """Return why a worker may be slow, and what to do; `host` is empty if it is not known."""
    where = f"host {host}" if host else "its host"
    return Cause(
        f"Something else {tenses('runs', 'ran')} on {where}, its GPU or processor "
        f"{tenses('is', 'was')} throttled, or its data {tenses('come', 'came')} slowly.",
        f"Look what else runs on {where} (`top`, `nvidia-smi`). `edl drain JOB {worker}` takes it "
        "out of the job; a policy for stragglers gives such workers smaller batches.",
    )
