"""Run scripts that were written for Horovod Elastic: an elastic state and a wrapped function.

Such a script keeps its own position in its data, its own training loop and its own commits; edl
controls the ring. The contract is Horovod's: an error may interrupt the wrapped function at any
collective. It is then called again, with the state of its last commit after a crash, or with its
present state when workers join or leave.

::

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @hvd.elastic.run
    def train(state): ...     # calls state.commit() now and then

    train(state)

:class:`State` and :func:`run` are the parts of it that do not depend on the framework. In these
points edl differs from Horovod Elastic (docs/adr/0010):

1. When all workers agree that a switch to another ring is due, each raises HostsUpdatedInterrupt
   and switches. The workers train on until the newcomers are ready, and do not wait for them.
2. A newcomer warms up, because its function may be interrupted and called again anyway.
3. If a worker dies during the last steps, some workers may have finished the function and others
   not. Those that have finished give their state to those that were interrupted.
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

from edl.binding.loop import end_alike, refuse_logical
from edl.binding.process import current_worker, let_state_follow, refusal
from edl.binding.replica import ByteRange, StateArrays
from edl.errors import RingBroken, UsageError
from edl.ring.ring import Ring
from edl.step.state_check import WHOLE, StateGroup
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
    """An attribute of an elastic state that is copied and pickled as a whole, such as a number."""

    value: Any


class State(ABC):
    """An elastic state, as in Horovod Elastic: named attributes that are equal on all workers.

    Scripts use a derived class, such as ``TorchState``, which defines how the attributes are copied
    and sent. Newcomers get the attributes; :meth:`commit` saves a copy in memory, and
    :meth:`restore` sets them back to it. Only the attributes that are given to the constructor are
    shared. Any other attribute is each worker's own. The constructor saves a first copy.

    Args:
        **attributes: the attributes by name, with their first values.
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
        """Add functions that :meth:`on_reset` calls in each new ring, before newcomers get a state.

        They are called in the order in which they were added. A newcomer calls them as well,
        because the ring that it joins may have another size than the one that ``size()`` returned
        before.

        Args:
            callbacks: functions without arguments.
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call :meth:`reset`, then the registered callbacks; edl calls this in each new ring."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Save a copy of the attributes in memory, to restore it after a crash of another worker.

        Then let workers join and leave. All workers must call this at the same point of the script,
        in the wrapped function; outside of it, the attributes are saved and nothing else. A
        newcomer in its warm-up saves nothing.

        Raises:
            HostsUpdatedInterrupt: if workers join or leave, see :meth:`check_host_updates`.
            RingBroken: if a worker is gone; the wrapper of :func:`run` handles it.
            StateDiffers, NewcomerDiffers: if the workers' states differ, and the job or this
                newcomer ends.
            WorkerEvicted: if the leader has evicted this worker.
        """
        self._pass(commit=True)

    def check_host_updates(self) -> None:
        """Let workers join and leave at this point of the script; all workers must call it.

        The attributes are saved only if workers join or leave. Outside of the wrapped function
        nothing happens.

        Raises:
            HostsUpdatedInterrupt: if workers join or leave here, or if this worker is a newcomer
                whose warm-up ends. The wrapped function is then called again in the new ring, with
                the present state.
            RingBroken, WorkerEvicted: as :meth:`commit` raises them.
        """
        self._pass(commit=False)

    def save(self) -> None:
        """Keep a copy of the attributes in memory for :meth:`restore`, in place of the last one."""
        self._saved = self._copied(self._values())

    def restore(self) -> None:
        """Set the attributes back to the copy that the last :meth:`save` made, which stays."""
        self._put(self._saved)

    def sync(self) -> None:
        """Replace this worker's attributes by those of rank 0, and save them.

        All workers must call this at the same point of the script. With one worker, only save.

        Raises:
            RingBroken: if a worker is gone; the attributes are undefined until :meth:`restore`.
            UsageError: if this worker's state has other attributes than rank 0's.
        """
        self.synchronise(current_worker().ring, 0, Receive.ALL)
        self._compared.forget()
        self.save()

    def reset(self) -> None:
        """Do nothing; a derived class may override this hook of :meth:`on_reset`."""
        return

    # --- called by the wrapper and by edl.worker.switching ---

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Send the attributes if this worker is rank ``root``; else receive all of them, or none.

        The attributes are replaced when this method returns. With one worker nothing happens.

        Args:
            ring: the ring to broadcast in; all its workers call this.
            root: the rank that sends.
            receive: ``Receive.NOTHING``: take part in the broadcast, and leave the attributes as
                they are. Any other value: replace all attributes. No effect on the root.

        Raises:
            RingBroken: if a worker is gone; the attributes are then undefined until
                :meth:`restore`.
            UsageError: if this worker's state has other attributes than rank ``root``'s; then
                nothing is replaced.
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
        """Save the attributes for :meth:`restore`, each time before the wrapped function is called.

        Also drop the list of their values, so the next :meth:`digests` makes it anew.
        """
        self._compared.forget()
        self.save()

    def trains(self, worker: Worker | None) -> None:
        """Note that ``worker`` runs the wrapped function from now on; None: no function runs.

        With None, :meth:`commit` only saves, and :meth:`check_host_updates` does nothing.
        """
        self._training = worker
        self._began = time.monotonic()

    def _pass(self, commit: bool) -> None:
        worker = self._training
        if worker is not None and worker.warming_up:
            self._points += 1
            long = time.monotonic() - self._began >= WARM_UP_S
            # After an update, or where edl may have missed one: at the second commit, or late.
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
        if worker.script.agree(compares=commit):  # the same on all workers
            if not commit:
                self.save()
                worker.script.saved()
            raise HostsUpdatedInterrupt(False)

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return the digests of the values in ``group`` by value name, to compare workers.

        The values are the parameters and the state of their optimizers. A group is one of the equal
        parts into which they are cut by bytes; the default is all of them. A value of which only a
        part is in the group has the digest of that part. A value of a type that is not compared is
        left out.
        """
        return self._digested(self._compared.within(group))

    def _parts(self) -> set[str]:
        return set(self._names)  # the keys of `_values`, the same on all workers

    # --- what a framework knows ---

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates, to compare them between workers.

        The keys are the names under which error messages mention the learning rates. Without an
        optimizer the result is empty.
        """

    @abstractmethod
    def _trained(self) -> dict[str, Any]:
        """Return in nested dicts the parameters and the state of their optimizers."""
        # These must be equal on all workers. In statistics of a forward pass (batch normalisation)
        # and in all other attributes a script may keep numbers of each worker's own.

    @staticmethod
    @abstractmethod
    def _size_of(value: Any) -> int | None:
        """Return the size in bytes of `value`, an array or tensor of the state; else None."""

    @abstractmethod
    def _digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """Return the digest (CRC-32) of each byte range in `parts` by the name of its value."""

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """Return the attributes by name, not copied, in the form in which workers send them."""

    @abstractmethod
    def _put(self, values: dict[str, Any]) -> None:
        """Set the attributes to copies of `values`, in the form that `_values` returns."""

    @abstractmethod
    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of `values`; it may take the memory of the last copy."""

    @abstractmethod
    def _exchanged(self, ring: Ring, root: int, values: dict[str, Any] | None, keep: bool) -> Any:
        """Broadcast the attributes of rank `root`; return them where `keep` is true, else None."""


def run(
    function: Callable[..., Any],
    failures: tuple[type[Exception], ...],  # what Horovod's collectives raise if the ring breaks
    broken: RingFailure,
    state_name: str,
) -> Callable[..., Any]:
    """Wrap a function for elastic training; each framework's `elastic.run` calls this."""

    @functools.wraps(function)
    def wrapper(state: State, *arguments: Any, **named: Any) -> Any:
        worker = _enlist(state, state_name, failures, broken)
        if worker.warming_up:
            _warm_up(worker, state, functools.partial(function, state, *arguments, **named))
            worker.join()
        worker.begin()
        end_alike()
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
                failure = _ring_broken(error, worker.generation, broken)
            worker.ring.break_()
            state.restore()
            worker.script.repair(failure)
        state.save()
        worker.script.end()
        worker.finishing.finish()
        return result

    return wrapper


def _ring_broken(error: Exception, generation: int, broken: RingFailure) -> RingBroken:
    """Return the error of a collective as edl's error that the ring broke; raise any other."""
    why = broken(error)
    if why is None:
        raise error
    if (refused := refusal(why, "run the same script")) is not None:
        raise refused from error
    return RingBroken(generation, why)


def warmed_up(worker: Worker) -> None:
    """End a newcomer's warm-up if it has made an update; call this right before each update."""
    if worker.warming_up and worker.script.begun > 0:
        if not _running:
            raise UsageError(
                "this script trains outside of elastic.run, so no worker can join or be replaced; "
                "put the training into a function f(state) and call elastic.run(f)(state)"
            )
        raise HostsUpdatedInterrupt(False)


def _enlist(
    state: State,
    state_name: str,
    failures: tuple[type[Exception], ...],
    broken: RingFailure,
) -> Worker:
    """Make `state` the state that newcomers get, and return this process's worker."""
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
    refuse_logical(worker, "a script with its own loop (elastic.run) trains")
    let_state_follow(state_name)

    def on_reset() -> None:
        try:
            state.on_reset()
        except failures as error:  # the ring is repaired, and the callbacks are called again
            raise _ring_broken(error, worker.generation, broken) from error

    worker.leave_data_to_script(state, on_reset)
    return worker


def _warm_up(worker: Worker, state: State, train: Callable[[], Any]) -> None:
    """Call `train` on a newcomer before it joins, until it has made an update; undo the update."""
    state.save()
    try:
        with _training(state, worker):
            train()  # slow: the first update loads libraries and builds graphs
    except HostsUpdatedInterrupt:
        logger.debug("w%d has warmed up", worker.id)
    state.restore()


@contextlib.contextmanager
def _training(state: State, worker: Worker) -> Iterator[None]:
    """Mark the script's training function as running on `worker` during the `with` block."""
    global _running
    state.trains(worker)
    _running = True
    try:
        yield
    finally:
        state.trains(None)
        _running = False


def is_running() -> bool:
    """Return whether this process is inside a function that `elastic.run` has wrapped."""
    return _running


__all__ = ["HorovodInternalError", "Plain", "State", "is_running", "run", "warmed_up"]
