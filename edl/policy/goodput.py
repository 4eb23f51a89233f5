"""Choose the size with the largest goodput: throughput times statistical efficiency.

:class:`Goodput` is the rule, that of Pollux (OSDI 2021). The throughput of sizes that the job never
had comes from a model of the step time (:mod:`edl.policy.step_time`). The statistical
efficiency is how much a sample is worth in a larger batch. It follows from the gradient noise scale
(:mod:`edl.step.noise`), which a job measures while it has this rule; until it is known
the efficiency is 1.

The size changes only if goodput grows by at least 5 % (``least_gain``), and if the rest of the
training gets shorter by more time than the change itself takes. If no size gains so much, the size
falls to the smallest one whose goodput is at most 1 % lower. No size above twice the largest
measured one is chosen, because the model is not reliable there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edl.policy.observation import Observation, Rule, State, Suggestion, alike
from edl.spec import setting
from edl.step.batching import Batching
from edl.text import span, workers

# ------------------------------------------------------------
# Choose the global batch with the largest goodput, where a job may choose it (Pollux, OSDI 2021).
#
# The entry point is `choose_batch`. The global batch is the number of samples of one batch of all
# workers together.
#
# With a larger batch the same samples make fewer updates, and each update is worth more; how much
# more follows from the gradient noise scale. A larger batch takes less time for each sample,
# because a step has costs, such as the reduction, that do not grow with the batch. Goodput is the
# product of both, so a job takes the batch with the largest goodput: a small one while the
# gradients have little noise, as at the beginning; a larger one later, and a larger one with more
# workers.
#
# No batch is tried that gives a worker more than twice the largest batch that was measured, because
# the model of the step time is not reliable there. If only one batch was measured, twice that batch
# is tried once: with one batch the model cannot tell the part of a step's time that grows with the
# batch from the part that does not. It is not tried where the allowed range ends so near that both
# would count as one measured batch.

CANDIDATES = 50  # in equal ratios, as in adaptdl
LEAST_GAIN = 0.05  # of goodput: for less nothing is changed
BEYOND = 2  # times the largest batch of a worker that was measured
ENOUGH_STEPS = 10  # with a batch, to know what it trains


class BatchDecision(NamedTuple):
    """The decision about a job's global batch, with the reason."""

    batch: int  # samples of all workers together; 0: the present number stays
    reason: str


def best_global_batch(now: Observation, size: int) -> tuple[int, float]:
    """Return the allowed global batch with the largest goodput, and that goodput."""
    assert now.batching is not None
    batches = [now.batching.of_all(size)]
    if now.batching.is_chosen:
        batches = _candidates(now, now.batching, size)
    return max(zip(batches, _goodputs(now, size, batches), strict=True), key=lambda one: one[1])


def choose_batch(now: Observation) -> BatchDecision:
    """Return the global batch to use next with the present number of workers, and why."""
    assert now.batching is not None
    mine = now.batching.of_all(now.np)
    stays = f"the global batch stays {mine}"
    if now.awaits:
        return BatchDecision(0, f"{stays}: the workers change")
    seen = now.seen.get(now.np)
    each = mine * now.step_batches / now.np
    if (
        now.model is None
        or seen is None
        or seen.steps < ENOUGH_STEPS
        or not alike(seen.batch, each)
    ):
        return BatchDecision(0, f"{stays}: its steps are yet to be measured")
    scale = now.noise.samples
    if scale is None:
        return BatchDecision(0, f"{stays}: the gradient noise scale is not known")
    most = now.batching.batch_range[1]
    twice = min(2 * mine, most)
    # With one batch the model cannot tell the part of a step's time that grows with the batch.
    if len(now.batches_seen) == 1 and not alike(twice, mine):
        return BatchDecision(
            twice, f"the global batch becomes {twice}: one size of it tells nothing"
        )
    best, then = best_global_batch(now, now.np)
    gain = then / _goodputs(now, now.np, [mine])[0] - 1.0
    about = f"{best} would make {gain:+.1%} of its progress, by a noise scale of {scale:,.0f}"
    if gain < LEAST_GAIN:
        return BatchDecision(0, f"{stays}: {about}, less than {LEAST_GAIN:.0%}")
    return BatchDecision(best, f"the global batch becomes {best}: {about}")


def _goodputs(now: Observation, size: int, batches: Sequence[int]) -> list[float]:
    # In samples a second, each worth as much as one in the job's first global batch.
    assert now.model is not None
    steps = [batch * now.step_batches for batch in batches]  # samples of each
    rates = now.model.with_batches(size, [samples / size for samples in steps])
    efficiencies = map(now.noise.efficiency, steps)
    return [rate * each for rate, each in zip(rates, efficiencies, strict=True)]


def _candidates(now: Observation, batching: Batching, size: int) -> list[int]:
    least, most = (max(size, one) for one in batching.batch_range)
    known = max([batching.of_all(now.np) * now.step_batches / now.np, *now.batches_seen])
    most = max(least, min(most, round(BEYOND * known * size / now.step_batches)))
    ratio = (most / least) ** (1 / (CANDIDATES - 1))
    several = (round(least * ratio**place) for place in range(CANDIDATES - 1))
    return sorted({*several, most, batching.of_all(size)})


ALIKE = 0.01  # a throughput that is so much smaller is the same: no model is that exact


@dataclass(frozen=True)
class Goodput:
    """The size rule `goodput`, which chooses the number of workers with the largest goodput."""

    least_gain: float = setting(0.05, "of goodput: for less nothing is changed", least=0.0)
    every_s: float = setting(30.0, "between two decisions")

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        if now.awaits:
            return Suggestion(now.np, f"stays at {now.np}: the last change is under way", state)
        if now.model is None:
            return Suggestion(now.np, f"stays at {now.np}: its steps are yet to be measured", state)
        asked_s = state.get("asked_s")
        if asked_s is not None and now_s - asked_s < self.every_s and state.get("np") == now.np:
            return Suggestion(now.np, str(state["why"]), state)
        np, why = self._choice(now, self.table(now))
        stays = why if np == now.np else f"stays at {now.np}: {np} were asked for just now"
        return Suggestion(np, why, {"asked_s": now_s, "np": now.np, "why": stays})

    def table(self, now: Observation) -> dict[int, float]:
        """Return the goodput of each size that the rule may choose, by number of workers."""
        if now.model is None or now.np == 0:
            return {}
        if now.batching is not None:
            return {np: best_global_batch(now, np)[1] for np in self._sizes(now)}
        worth = {np: now.noise.efficiency(np * now.batch or 1.0) for np in self._sizes(now)}
        return {np: now.model.throughput(np) * each for np, each in worth.items()}

    def _sizes(self, now: Observation) -> list[int]:
        most = min(now.most, BEYOND * max([now.np, *now.seen]))
        sizes = [np for np in range(now.least, most + 1) if now.sizes.allows(np)]
        return sorted({*sizes, now.np})

    def _choice(self, now: Observation, table: Mapping[int, float]) -> tuple[int, str]:
        mine = table[now.np]
        best = max(table, key=lambda np: (table[np], -np))
        gain = table[best] / mine - 1.0 if mine > 0 else float("inf")
        about = f"{best} would train {gain:+.1%} of what {now.np} do"
        if (scale := now.noise.samples) is not None:
            about = (
                f"{best} would make {gain:+.1%} of the progress of {now.np}, by a noise scale of "
                f"{scale:,.0f} samples"
            )
        as_good = [np for np in table if np < now.np and table[np] >= (1.0 - ALIKE) * mine]
        if gain < self.least_gain:
            if as_good:
                fewer = min(as_good)
                return fewer, f"goes to {fewer}: it trains as much as {now.np}"
            return now.np, f"stays at {now.np}: {about}, less than {self.least_gain:.0%}"
        if now.left is not None:
            saved_s = now.left / mine - now.left / table[best] if mine > 0 else float("inf")
            if saved_s <= now.change_s:
                return now.np, (
                    f"stays at {now.np}: {about}, which saves {span(saved_s)} until the end, and "
                    f"the change costs {span(now.change_s)}"
                )
        return best, f"goes to {best}: {about}"


# ------------------------------------------------------------
# Decide the size that a job wants: the answer of its size rule, within the limits of the job.
#
# The entry is `decide_size`. The limits are the allowed sizes, the room on the hosts, and the
# requests of people.


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
