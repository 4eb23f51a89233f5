"""Decide the size that a job wants: the answer of its size rule, within the limits of the job.

The entry is :func:`decide_size`. The limits are the allowed sizes, the room on the hosts, and the
requests of people.
"""

from __future__ import annotations

from edl.core.plural import workers
from edl.core.policy.cost import span
from edl.core.policy.observation import Observation, Rule, State, Suggestion


def decide_size(
    rule: Rule,
    now: Observation,
    state: State,
    now_s: float,
    held_s: float = 0.0,  # so long the size that a person asked for is still kept
    data_wait: float | None = None,  # the fraction of a step; None: any
    desired: int | None = None,
) -> Suggestion:
    """Return the number of workers that the job wants, with the reason and the rule's new state."""
    if held_s > 0:
        asked = now.np if desired is None else desired
        why = f"stays at {now.np}: a person has asked for {workers(asked)}, which counts for "
        return Suggestion(now.np, f"{why}{span(held_s)} more", state)
    wanted = rule(now, state, now_s)
    # More workers would wait for data as well.
    if data_wait is not None and wanted.np > now.np and now.data_part > data_wait:
        why = (
            f"stays at {now.np}: {now.data_part:.0%} of a step goes by waiting for data, more than "
            f"{data_wait:.0%}; let the loader have more processes (num_workers) first"
        )
        return Suggestion(now.np, why, state)
    # The present size may stay, even if it is not allowed.
    fits = now.sizes.fit(min(wanted.np, now.most))
    if fits == wanted.np or wanted.np == now.np:
        return wanted
    why = f"{wanted.reason}; of {wanted.np} it gets {fits}, for it may have {now.sizes}"
    if now.slots is not None and wanted.np > now.slots:
        why += f" and there are {now.slots} slots"
    return Suggestion(fits, why, wanted.state)
