"""Run scripts that were written for Horovod Elastic: an elastic state and a wrapped function.

Such a script keeps its own position in its data, its own loop and its own commits; edl controls the
ring. The contract is Horovod's: the function may be interrupted at any collective. It is then
called again, with the state of its last commit after a crash, or with its present state when
workers join or leave.

::

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @hvd.elastic.run
    def train(state): ...     # commits now and then

    train(state)

These rules are edl's own (docs/adr/0010):

1. When all workers agree that a switch is due, they all raise and switch. No worker has waited for
   a newcomer until then.
2. A newcomer warms up, because its function may be interrupted and called again anyway.
3. A worker that has trained to the end gives its state to the workers that the death of another one
   interrupted in their last steps.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from edl.core.step.state_check import WHOLE, StateGroup
from edl.errors import RingBroken, UsageError
from edl.framework.digest import ByteRange, StateArrays
from edl.framework.horovod_errors import refusal
from edl.framework.process import current_worker, let_state_follow
from edl.ring.ring import Ring
from edl.worker.progress import Receive
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

WARM_UP_S = 5.0  # a first commit or check that comes later most likely follows an update

_running = False  # the function that elastic.run has wrapped is being called

# What Horovod says of a broken ring; None: it is another error.
RingFailure = Callable[[Exception], str | None]
_STATE_IS_OURS = (
    "elastic.run needs a state of edl's own, whose commit lets workers join and leave: take "
    "elastic.{} of edl, not of horovod"
)


@dataclass
class Plain:
    """An attribute of an elastic state that is copied and sent as it is, whatever its type."""

    value: Any


class State(ABC):
    """A set of named attributes that follow the job: an elastic state, as in Horovod Elastic.

    Each framework defines how the attributes are copied and sent. An attribute that is not given to
    the constructor stays each worker's own.
    """

    def __init__(self, **attributes: Any) -> None:
        self._names = tuple(attributes)
        self._callbacks: list[Callable[[], None]] = []
        self._training: Worker | None = None  # while the wrapped function runs
        self._began = 0.0  # since when it does
        self._points = 0  # passed in the warm-up
        for name, value in attributes.items():
            setattr(self, name, value)
        self._saved: Any = None
        self._compared = StateArrays(self._trained, self._size_of)
        State.save(self)  # that of a derived class may need attributes which do not exist yet

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Register functions to call in each new ring, before the state is sent to newcomers.

        They are called on newcomers as well, because the size that a newcomer saw at the top of the
        script was a guess.
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call :meth:`reset` and the registered callbacks, in a new ring whose size they see."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Save the state, to restore it after a crash, and then let workers join and leave.

        All workers must call this at the same point.

        Raises:
            HostsUpdatedInterrupt: as :meth:`check_host_updates` does.
        """
        self._pass(commit=True)

    def check_host_updates(self) -> None:
        """Let workers join and leave at this point of the script; all workers must call it.

        Raises:
            HostsUpdatedInterrupt: if workers join or leave now. The wrapped function is then called
                again in the new ring, with the state as it is now.
        """
        self._pass(commit=False)

    def save(self) -> None:
        """Keep a copy of the state in memory, for :meth:`restore`."""
        self._saved = self._copied(self._values())

    def restore(self) -> None:
        """Set the attributes back to the copy that :meth:`save` made last."""
        self._put(self._saved)

    def sync(self) -> None:
        """Take over the state of rank 0 and save it; all workers must call this together."""
        self.synchronise(current_worker().ring, 0, Receive.ALL)
        self._compared.forget()
        self.save()

    def reset(self) -> None:
        """Do nothing; a derived class may override this hook, which is called in each new ring."""
        return

    # --- called by the wrapper and by edl.worker.switching ---

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Send the state if this worker is rank ``root``; else receive all of it or nothing.

        ``receive`` says whether this worker needs the state. See
        :class:`edl.worker.replica.Shared`.

        Raises:
            RingBroken: if a worker is gone; the state is then undefined until it is restored.
            UsageError: if this worker's state has other attributes than the job's.
        """
        if ring.alone:
            return
        sending = ring.place.rank == root
        keep = receive is not Receive.NOTHING and not sending
        values = self._exchanged(ring, root, self._values() if sending else None, keep)
        if keep:
            if odd := sorted(values.keys() ^ self._parts()):
                raise UsageError(
                    f"this worker's elastic state differs from the job's in {', '.join(odd)}"
                )
            self._put(values)

    def renew(self) -> None:
        """Save the state at the beginning of a new ring, and list its values anew."""
        self._compared.forget()
        self.save()

    def trains(self, worker: Worker | None) -> None:
        """Set the worker whose wrapped function runs now; None: the function has ended."""
        self._training = worker
        self._began = time.monotonic()

    def _pass(self, commit: bool) -> None:
        """Save the state if asked to, and leave the wrapped function here if a switch is due.

        All workers come to the same calls. A newcomer leaves the function to end its warm-up: after
        an update, at its second call, or when it has run for :data:`WARM_UP_S` seconds.

        Args:
            commit: whether to save the state in any case; else it is saved only if a switch is due.

        Raises:
            HostsUpdatedInterrupt: if workers join or leave, or the warm-up ends.
        """
        worker = self._training
        if worker is not None and worker.warming_up:
            self._points += 1
            long = time.monotonic() - self._began >= WARM_UP_S
            if worker.script.begun > 0 or self._points > 1 or long:
                raise HostsUpdatedInterrupt(False)
            return
        if commit:
            if worker is not None:
                worker.script.before_save()
            self.save()
        if worker is None:
            return
        if commit:
            worker.script.saved()
        if worker.script.agree(compares=commit):
            if not commit:
                self.save()
                worker.script.saved()
            raise HostsUpdatedInterrupt(False)

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return a digest by name of each part of the state that is in ``group``.

        See :class:`edl.worker.state_check.Compared`.
        """
        return self._digested(self._compared.within(group))

    def _parts(self) -> set[str]:
        """Return the names that :meth:`_values` has; all workers must have the same ones."""
        return set(self._names)

    # --- what a framework knows ---

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates by name, to compare them between workers.

        See :class:`edl.worker.state_check.Compared`.
        """

    @abstractmethod
    def _trained(self) -> dict[str, Any]:
        """Return the values that the averaged gradients keep equal on all workers, in containers.

        These are the parameters and what their optimizers hold. Statistics of a forward pass and
        all other attributes are left out: a script may keep numbers of each worker's own in them.
        """

    @staticmethod
    @abstractmethod
    def _size_of(value: Any) -> int | None:
        """Return the size in bytes of an array of the state; None if ``value`` is no array."""

    @abstractmethod
    def _digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """Return a digest of each part by name; parts that cannot be compared are left out."""

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """Return the present attributes by name, in the form in which they are sent."""

    @abstractmethod
    def _put(self, values: dict[str, Any]) -> None:
        """Set the attributes to ``values``, which have the form that :meth:`_values` returns.

        ``values`` themselves stay as they are.
        """

    @abstractmethod
    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of ``values`` that later updates do not change.

        The copy may use the memory of the copy that was made before.
        """

    @abstractmethod
    def _exchanged(self, ring: Ring, root: int, values: dict[str, Any] | None, keep: bool) -> Any:
        """Broadcast the ``values`` of the rank ``root``, and return them where ``keep`` is true.

        Args:
            ring: the ring to broadcast in; all its workers take part.
            root: the rank that sends.
            values: what :meth:`_values` returns, on the root; None on all others.
            keep: whether this worker needs the received values.
        """


def run(
    function: Callable[..., Any],
    failures: tuple[type[Exception], ...],
    broken: RingFailure,
    state_name: str,
) -> Callable[..., Any]:
    """Wrap a function for elastic training: the implementation of ``elastic.run`` of a framework.

    The wrapped function lets its worker join the job, warms a newcomer up, and calls ``function``
    again after each switch and each repair, until it returns.

    Args:
        function: the script's training function; its first argument is a :class:`State`.
        failures: the exceptions that Horovod's collectives raise in this framework when the ring
            breaks.
        broken: returns what such an exception says about the broken ring; None if it is another
            error.
        state_name: the name of the framework's state class, for error messages.

    Returns:
        The wrapper. It returns the result of ``function``, or None on a worker that got the final
        state from another one.
    """

    @functools.wraps(function)
    def wrapper(state: State, *arguments: Any, **named: Any) -> Any:
        worker = _enlist(state, state_name)
        if worker.warming_up:
            _warm_up(worker, state, functools.partial(function, state, *arguments, **named))
            worker.join()
        worker.begin()
        result = None  # of who trains to the end; others get the state of one that has
        while not worker.script.ended:
            worker.boundary()
            state.renew()
            try:
                with _training(state, worker):
                    result = function(state, *arguments, **named)
                break
            except HostsUpdatedInterrupt:
                continue
            except RingBroken as error:
                failure = error
            except failures as error:
                why = broken(error)
                if why is None:
                    raise
                if (refused := refusal(why, "run the same script")) is not None:
                    raise refused from error
                failure = RingBroken(worker.generation, why)
            worker.ring.break_()
            state.restore()
            worker.script.repair(failure)
        state.save()
        worker.script.end()
        worker.finishing.finish()
        return result

    return wrapper


def warmed_up(worker: Worker) -> None:
    """End a newcomer's warm-up if it has made an update; called right before each update.

    Raises:
        HostsUpdatedInterrupt: to leave the wrapped function, as when workers join.
        UsageError: if the script trains outside of ``elastic.run``, so there is no function to
            leave.
    """
    if worker.warming_up and worker.script.begun > 0:
        if not _running:
            raise UsageError(
                "this script trains outside of elastic.run, so no worker can join or be replaced; "
                "put the training into a function f(state) and call elastic.run(f)(state)"
            )
        raise HostsUpdatedInterrupt(False)


def _enlist(state: State, state_name: str) -> Worker:
    """Make ``state`` follow the job, and return this process's worker.

    Raises:
        UsageError: if ``state`` is not a state of edl, if the job has ended already, if the class
            of ``state`` overrides ``sync()``, or if objects were given to ``edl.track``.
    """
    worker = current_worker()
    if not isinstance(state, State):
        raise UsageError(_STATE_IS_OURS.format(state_name))
    if worker.script.ended:
        raise UsageError(
            "this job has ended with the first function that elastic.run wrapped; do all of the "
            "training in one"
        )
    if type(state).sync is not State.sync:
        raise UsageError(
            f"{type(state).__name__}.sync() would not be called: give what follows the job to the "
            "constructor of the state, as an attribute, and leave sync() out"
        )
    let_state_follow(state_name)
    worker.leave_data_to_script(state, state.on_reset)
    return worker


def _warm_up(worker: Worker, state: State, train: Callable[[], Any]) -> None:
    """Call ``train`` alone until it has made an update, so that all it needs is loaded.

    Then undo the update, with the save and the restore of the state's own class.
    """
    state.save()
    try:
        with _training(state, worker):
            train()
    except HostsUpdatedInterrupt:
        logger.debug("w%d has warmed up", worker.id)
    state.restore()


@contextlib.contextmanager
def _training(state: State, worker: Worker) -> Iterator[None]:
    """Mark the wrapped function as running, so that its commits let workers join and leave."""
    global _running
    state.trains(worker)
    _running = True
    try:
        yield
    finally:
        state.trains(None)
        _running = False


def is_running() -> bool:
    """Return whether a function that ``elastic.run`` has wrapped is running now."""
    return _running


__all__ = ["HorovodInternalError", "Plain", "State", "is_running", "run", "warmed_up"]
