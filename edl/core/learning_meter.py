"""Sample the loss and the learning rate of one worker's training (:class:`LearningMeter`).

The training thread pays for a comparison in each step. Twice a second it keeps the loss of one step
and its learning rate, and reads the loss half a second later, when the device has computed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

PERIOD_S = 0.5  # between two samples
KEPT = 64  # samples that wait for a leader

_RATES = ("learning_rate", "lr")
_SCORES = ("val", "valid", "validation", "eval", "test")  # losses of data that is not trained


@dataclass(frozen=True)
class LearningSample:
    """The loss and the learning rate of one step."""

    step: int  # from 1
    loss: float | None  # may be infinite or nan; None: not known
    learning_rate: float | None  # of the step's update; None: not known
    np: int
    is_mean: bool = False  # the loss is the mean over all workers, not of one worker's batch


class LearningMeter:
    """The samples of a worker; the daemon's thread calls `taken`, the training thread the rest."""

    def __init__(self) -> None:
        self.wants_loss = True  # the next loss is to be given to `see_loss`; others need not
        # The framework sets it.
        self.learning_rate: Callable[[], float | None] = lambda: None
        self._due_s = 0.0
        self._step = 0
        self._rate: float | None = None
        self._read: Callable[[], float | None] | None = None
        self._mean: float | None = None
        self._has_means = False
        self._samples: deque[LearningSample] = deque(maxlen=KEPT)

    def see_loss(self, step: int, read: Callable[[], float | None]) -> None:
        """Keep the loss of `step` and the learning rate; a later step calls `read` at its end."""
        self.wants_loss = False
        if not self._has_means:
            self._step, self._read, self._rate = step, read, self.learning_rate()

    def see_means(self, step: int, means: Mapping[str, float]) -> None:
        """Keep the loss among the means over all workers; from now on it counts alone."""
        if (name := training_loss(means)) is None:
            return
        self._has_means, self._read = True, None
        rate = self.learning_rate()
        if rate is None:
            rate = next((means[one] for one in means if _last_word(one) in _RATES), None)
        self._step, self._mean, self._rate = step, means[name], rate

    def completed(self, step: int, np: int, now_s: float) -> None:
        """Note that `step` is complete; twice a second, make a sample."""
        if now_s < self._due_s:
            return
        self._due_s, self.wants_loss = now_s + PERIOD_S, True
        loss, read, is_mean = self._mean, self._read, self._has_means
        if read is not None:
            with suppress(RuntimeError):  # of a device
                loss = read()
        rate = self._rate
        if loss is None:
            self._step, rate = step, self.learning_rate()
        self._mean = self._read = None
        if loss is not None or rate is not None:
            self._samples.append(LearningSample(self._step, loss, rate, np, is_mean))

    def taken(self) -> tuple[LearningSample, ...]:
        """Return the samples since the last call, the oldest first, at most `KEPT`."""
        found: list[LearningSample] = []
        with suppress(IndexError):
            while True:
                found.append(self._samples.popleft())
        return tuple(found)


def training_loss(means: Mapping[str, float]) -> str | None:
    """Return the name of the training loss among `means`, if there is one."""
    names = [name for name in means if "loss" in name.lower() and not _is_score(name)]
    return min(names, key=lambda name: (len(name), name), default=None)


def _last_word(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _is_score(name: str) -> bool:
    words = name.lower().replace("/", "_").replace("-", "_").replace(".", "_").split("_")
    return any(word in _SCORES for word in words)
