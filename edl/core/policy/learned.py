"""What a job has learned of its sizes: kept for the next leader, and for a resumed job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edl.core.job.profile import SAMPLES, Curve
from edl.core.policy.observation import Observation, Seen
from edl.core.policy.stragglers import Times, data_part
from edl.core.record import Record
from edl.core.records import Reading
from edl.core.sizes import Sizes


@dataclass(frozen=True)
class Learned(Record):
    """The throughput of each size, and what the rule has noted.

    Attributes:
        seen: by number of workers, in order.
        np: workers of the newest reading, and ``steps`` of such a ring since they are so many.
        elapsed_s: of the job's training, as far as its leaders have seen it.
        worker_s: the same, times the workers.
        state: the notes of the rule whose file is ``text``; another one begins without.
        replaced: host -> at which ``elapsed_s`` a slow worker of it was replaced.
        times: of the slowest workers, in their last steps.
    """

    seen: tuple[tuple[int, Seen], ...] = ()
    np: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    worker_s: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    replaced: Mapping[str, float] = field(default_factory=dict)
    times: tuple[Times, ...] = ()

    def with_reading(self, before: Reading | None, now: Reading) -> Learned:
        """With what was trained between two readings of one worker in one ring.

        The first reading of a ring is taken after its first step, which so does not count. Nor does
        what lies between two epochs, where a script evaluates or saves.
        """
        learned = self if now.size == self.np else replace(self, np=now.size, steps=0)
        if before is None or (before.worker, before.generation) != (now.worker, now.generation):
            return learned
        steps, seconds = now.step - before.step, now.at_s - before.at_s
        if steps <= 0 or seconds <= 0:
            return learned
        learned = replace(learned, steps=learned.steps + steps)
        if before.epoch != now.epoch:
            return learned
        samples = now.samples - before.samples
        work = samples or steps * now.size  # a script that keeps its own place counts no samples
        return learned._with(now.size, Seen(work / seconds, steps))

    def for_rule(self, text: str) -> Learned:
        """For the rule in ``text``."""
        return self if text == self.text else replace(self, text=text, state={})

    def with_curve(self, curve: Curve) -> Learned:
        """With what `edl profile` has measured, of sizes of which nothing was seen."""
        learned, known = self, {np for np, _ in self.seen}
        for point in curve.points:
            if point.unit == SAMPLES and point.np not in known:
                learned = learned._with(point.np, Seen(point.throughput, point.steps))
        return learned

    def passed(self, seconds: float, np: int) -> Learned:
        """So much later, with ``np`` workers meanwhile."""
        return replace(
            self, elapsed_s=self.elapsed_s + seconds, worker_s=self.worker_s + seconds * np
        )

    def observation(
        self,
        np: int,
        sizes: Sizes,
        slots: int | None,
        awaits: bool,
        left: float | None,
        wishes: Sequence[int] = (),
    ) -> Observation:
        """What a rule is shown of a job in which ``np`` workers train now."""
        return Observation(
            np=np,
            sizes=sizes,
            slots=slots,
            steps=self.steps if np == self.np else 0,
            seen=dict(self.seen),
            awaits=awaits,
            elapsed_s=self.elapsed_s,
            worker_s=self.worker_s,
            left=left,
            wishes=wishes,
            data_part=data_part(self.times),
        )

    def _with(self, np: int, more: Seen) -> Learned:
        seen = dict(self.seen)
        seen[np] = seen[np].and_then(more) if np in seen else more
        return replace(self, seen=tuple(sorted(seen.items())))
