"""Draw jobs of Pollux' measured applications by seed, in any mix and at any rate of arrival.

:func:`mixed_jobs` draws them. A job's slots and batch are drawn from those that users of its
application had in all published workloads at load 1.0.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping

from edl.errors import UsageError
from edl.simulator.published.workloads.pollux_measurements import measured_applications, pollux_rows
from edl.simulator.published.workloads.pollux_workload import application_job
from edl.simulator.workload import HOUR_S, SubmittedJob, shape, times

LOAD = "1.0"
UNTIL_S = 8 * HOUR_S
ARRIVALS = "0.333"  # a minute: 160 jobs in 8 hours, as at load 1.0


def mixed_jobs(arrivals: str, seed: int, mix: str = "") -> list[SubmittedJob]:
    """Return jobs of Pollux' measured applications that arrive in 8 hours, drawn by `seed`."""
    users: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in pollux_rows("jobs"):
        if row["load"] == LOAD:
            users[row["application"]].append((int(row["num_replicas"]), int(row["batch_size"])))
    wanted = (
        application_weights(mix) if mix else Counter({name: len(of) for name, of in users.items()})
    )
    names, known, made = sorted(wanted), measured_applications(), []
    chance = random.Random(f"mix {seed}")
    for number, arrival_s in enumerate(times(shape(arrivals), UNTIL_S, chance)):
        (name,) = chance.choices(names, [wanted[each] for each in names])
        slots, batch = chance.choice(users[name])
        made.append(application_job(f"{name}-{number}", arrival_s, known[name], slots, batch))
    if not made:
        raise UsageError(f"no job arrives in 8 hours at {arrivals} a minute; let more come")
    return made


def application_weights(text: str) -> Mapping[str, float]:
    """Return the relative frequency of each application that `text` names."""
    known, found = measured_applications(), dict[str, float]()
    for part in text.split(","):
        name, _, weight = (word.strip() for word in part.partition("="))
        if name not in known:
            raise UsageError(f"there is no application {name!r}; measured are {', '.join(known)}")
        try:
            found[name] = float(weight or 1)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise UsageError(f"{part.strip()!r} is no part of a mix; write more than 0, {name}=2")
    return found
