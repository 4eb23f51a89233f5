"""What a job wishes now: its rule's answer, within what people and hosts allow."""

from __future__ import annotations

from edl.core.plural import workers
from edl.core.policy.cost import span
from edl.core.policy.observation import Observation, Rule, State, Suggestion


def decide_size(
    rule: Rule,
    now: Observation,
    state: State,
    now_s: float,
    held_s: float = 0.0,
    data_wait: float | None = None,
) -> Suggestion:
    """The size that the job wishes, one that it may have and there is room for.

    Args:
        held_s: for how long a person's word still counts, who has asked for this size.
        data_wait: the part of a step that may go by waiting for data; above it no worker more is
            wished, for the data would be waited for as before. None: any.
    """
    if held_s > 0:
        why = f"stays at {now.np}: a person has asked for {workers(now.np)}, which counts for "
        return Suggestion(now.np, f"{why}{span(held_s)} more", state)
    wanted = rule(now, state, now_s)
    if data_wait is not None and wanted.np > now.np and now.data_part > data_wait:
        why = (
            f"stays at {now.np}: {now.data_part:.0%} of a step goes by waiting for data, more than "
            f"{data_wait:.0%}; let the loader have more processes (num_workers) first"
        )
        return Suggestion(now.np, why, state)
    fits = now.sizes.fit(min(wanted.np, now.most))
    if fits == wanted.np or wanted.np == now.np:
        return wanted
    why = f"{wanted.reason}; of {wanted.np} it gets {fits}, for it may have {now.sizes}"
    if now.slots is not None and wanted.np > now.slots:
        why += f" and there are {now.slots} slots"
    return Suggestion(fits, why, wanted.state)
