"""Decide how many workers a job may have, by all rules about its size: :class:`Sizes`.

A switch is *planned* only to an allowed size: from ``min_np`` to ``max_np``, one of ``sizes`` if
any are given, and a multiple of ``size_step``. A crash is not planned: the ring goes on with any
size of at least ``min_np``, and returns to an allowed size when replacements join, or when surplus
workers leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.core.plural import workers
from edl.core.record import Record
from edl.core.settings import setting
from edl.errors import UsageError


@dataclass(frozen=True)
class Sizes(Record):
    """The world sizes (numbers of workers) that one job may have."""

    min_np: int = setting(
        1,
        "the job never trains with fewer workers. Under horovodrun its `--min-np` is the default, "
        "unless edl [cannot see it](../guides/horovodrun.md#settings)",
        option="--min-np",
    )
    max_np: int | None = setting(
        None,
        "the job never has more workers. Default: `-np`, or `--slots` if that is given and "
        "greater. Under horovodrun its `--max-np` is the default, unless edl cannot see it",
        option="--max-np",
    )
    sizes: tuple[int, ...] = setting(
        (),
        "only these numbers of workers, like `1,2,4` "
        "([sizes](../guides/scaling.md#only-some-sizes)); empty: all from `min_np` to `max_np`",
        option="--sizes",
        metavar="N,N,...",
    )
    size_step: int = setting(
        1, "only multiples of this many workers", option="--size-step", metavar="N"
    )

    # --- what is allowed

    def allows(self, np: int) -> bool:
        """Return whether `np` is an allowed size: one to which a switch may be planned."""
        within = self.min_np <= np and (self.max_np is None or np <= self.max_np)
        return within and (not self.sizes or np in self.sizes) and np % self.size_step == 0

    def enough(self, np: int) -> bool:
        """Return whether a ring of `np` workers may train, allowed or not: at least `min_np`."""
        return np >= self.min_np

    def below(self, np: int) -> int | None:
        """Return the largest allowed size that is at most `np`, if there is one."""
        if self.sizes:
            return max((n for n in self.sizes if n <= np and self.allows(n)), default=None)
        top = np if self.max_np is None else min(np, self.max_np)
        top -= top % self.size_step
        return top if self.allows(top) else None

    def above(self, np: int) -> int | None:
        """Return the smallest allowed size that is at least `np`, if there is one."""
        if self.sizes:
            return min((n for n in self.sizes if n >= np and self.allows(n)), default=None)
        bottom = max(np, self.min_np)
        bottom += -bottom % self.size_step
        return bottom if self.allows(bottom) else None

    def fit(self, np: int) -> int:
        """Return the largest allowed size of at most `np`, or else the smallest allowed size."""
        below = self.below(np)
        if below is not None:
            return below
        least = self.above(np)
        return max(np, self.min_np) if least is None else least

    # --- more and fewer

    def room(self, others: int, np: int, has: int = 0) -> int:
        """Return the largest number from `has` to `np` whose sum with `others` is allowed."""
        fitting = (n for n in range(np, has, -1) if self.allows(others + n))
        return next(fitting, has)

    def keeps(self, size: int, now: int) -> bool:
        """Return whether a ring may be changed, by a plan, from `now` to `size` workers."""
        return size == now or self.allows(size) or now < size <= self.min_np

    # --- what is refused

    def check(self, np: int) -> None:
        """Raise an error if these sizes are impossible, or no job can start with `np` workers."""
        given = (("np", np), ("min-np", self.min_np), ("max-np", self.max_np))
        for name, value in (*given, ("size-step", self.size_step)):
            if value is not None and value < 1:
                raise UsageError(f"--{name} is {value}; a job needs at least 1 worker")
        most = self.max_np
        if most is not None and self.min_np > most:
            raise UsageError(
                f"--min-np is {self.min_np} and --max-np is {most}; min must not be above max"
            )
        wrong = [n for n in self.sizes if not self.allows(n)]
        if wrong:
            raise UsageError(
                f"--sizes has {', '.join(map(str, wrong))}; each must lie between --min-np "
                f"{self.min_np} and --max-np {most}, and be a multiple of --size-step "
                f"{self.size_step}"
            )
        if not self.min_np <= np or (most is not None and np > most):
            raise UsageError(
                f"-np is {np}; it must lie between --min-np {self.min_np} and --max-np {most}"
            )
        if not self.allows(np):
            raise UsageError(f"-np is {np}; {self.refusal(np)}")

    def check_scale(self, job: str, np: int) -> None:
        """Raise an error if `np`, the number of workers to scale the job to, is not allowed."""
        if self.allows(np):
            return
        hint = ""
        if np < 1:
            raise UsageError(
                f"cannot scale job {job} to {workers(np)}: `edl stop {job}` ends it, and `edl "
                f"preempt {job}` saves it first, to be resumed later"
            )
        if not self.enough(np):
            hint = f"; start it with a lower --min-np, or run `edl stop {job}`"
        elif self.max_np is not None and np > self.max_np:
            hint = "; start it with a higher --max-np"
        raise UsageError(f"cannot scale job {job} to {workers(np)}: {self.refusal(np)}{hint}")

    def refusal(self, np: int) -> str:
        """Return a clause that says why a job may not have `np` workers."""
        if not self.enough(np):
            return f"min_np is {self.min_np}"
        if self.max_np is not None and np > self.max_np:
            return f"max_np is {self.max_np}"
        near = [n for n in (self.below(np), self.above(np)) if n is not None]
        nearest = " and ".join(map(str, near)) or "none"
        be = "are" if len(near) > 1 else "is"
        return f"the job may have {self}; nearest to {np} {be} {nearest}"

    def __str__(self) -> str:
        if self.sizes:
            return f"{_one_of(n for n in self.sizes if self.allows(n))} workers"
        most = "any number" if self.max_np is None else str(self.max_np)
        steps = f" in steps of {self.size_step}" if self.size_step > 1 else ""
        return f"{self.above(self.min_np) or self.min_np} to {most} workers{steps}"


def _one_of(numbers: Iterable[int]) -> str:
    *most, last = [str(n) for n in sorted(set(numbers))] or ["no"]
    return f"{', '.join(most)} or {last}" if most else last
