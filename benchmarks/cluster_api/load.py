"""Submit jobs over HTTP at a fixed rate, and note how long each took to be acknowledged."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl.client.http_api import ApiClient
from edl.errors import CoordinationError

Submit = Callable[[int], bool]
"""Submits the job with the given number; returns whether it was acknowledged."""


@dataclass(frozen=True)
class Acknowledgements:
    """The result of submissions at a fixed rate.

    Attributes:
        asked_per_s: the rate at which jobs were submitted.
        submitted: how many were.
        refused: how many of them were not acknowledged.
        seconds: from the first submission to the last acknowledgement.
        p50_ms: the median time from when a job was due to be submitted to its acknowledgement.
        p99_ms: the time that 99 of 100 did not exceed.
        most_ms: the longest.
    """

    asked_per_s: float
    submitted: int
    refused: int
    seconds: float
    p50_ms: float
    p99_ms: float
    most_ms: float

    @property
    def per_s(self) -> float:
        """The acknowledgements a second."""
        return (self.submitted - self.refused) / self.seconds


def percentile(values: Sequence[float], part: float) -> float:
    """Return the least of ``values`` that ``part`` of them (0 to 1) do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def summary(
    rate: float, seconds: float, taken_s: Sequence[float], refused: int
) -> Acknowledgements:
    """Return the result of submissions that took so long each."""
    return Acknowledgements(
        asked_per_s=rate,
        submitted=len(taken_s),
        refused=refused,
        seconds=seconds,
        p50_ms=1000 * percentile(taken_s, 0.5),
        p99_ms=1000 * percentile(taken_s, 0.99),
        most_ms=1000 * max(taken_s),
    )


def at_rate(submits: Sequence[Submit], rate: float, count: int, first: int = 0) -> Acknowledgements:
    """Submit ``count`` jobs, ``rate`` a second, and wait until all are answered.

    The time of each counts from when it was due, so that a server that is late makes all that wait
    late, too, as it does to users who do not wait for each other.

    Args:
        submits: one function for each connection; a thread calls each.
        rate: jobs a second.
        count: how many.
        first: the number of the first job.
    """
    numbers = itertools.count()
    taking = threading.Lock()
    taken_s: list[float] = []
    refused = 0
    began_s = time.monotonic() + 0.1

    def work(submit: Submit) -> None:
        nonlocal refused
        while True:
            with taking:
                number = next(numbers)
            if number >= count:
                return
            due_s = began_s + number / rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            done = submit(first + number)
            with taking:
                taken_s.append(time.monotonic() - due_s)
                refused += not done

    threads = [threading.Thread(target=work, args=(one,)) for one in submits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary(rate, time.monotonic() - began_s, taken_s, refused)


def over_http(client: ApiClient, directory: str) -> Submit:
    """Return the function that submits a job over the connection of ``client``.

    ``directory`` is the job's working directory.
    """

    def submit(number: int) -> bool:
        manifest = {"name": f"j{number}", "command": ["true"], "min": 1, "max": 4}
        target = f"/v1/jobs?key=k{number}"
        try:
            answer = client.call("POST", target, {**manifest, "cwd": directory})
        except CoordinationError:
            return False
        return answer.status == 201

    return submit
