"""Prepare the processes of PyTorch's loader for a worker that may leave or die.

:class:`LoaderProcessInit` runs in each of them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch.utils.data

from edl.framework.forks import NOTICES, let_go_of_the_network
from edl.torch.small_tensors import send_small_tensors_by_value

PR_SET_PDEATHSIG = 1  # prctl(2): have the kernel signal this process when its parent dies


def forks(loader: torch.utils.data.DataLoader[Any]) -> bool:
    """Return whether `loader` starts its processes by forking this process."""
    context = loader.multiprocessing_context or multiprocessing
    return loader.num_workers > 0 and context.get_start_method() == "fork"


def make_directory_of_sockets() -> None:
    """Make the directory in which the processes of PyTorch's loader put their sockets."""
    # Else each process would make its own (`pymp-*`), and leave it: it is ended by a signal.
    multiprocessing.util.get_temp_dir()


class LoaderProcessInit:
    """The `worker_init_fn` of PyTorch's loader: a function that prepares a loader process."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        worker = multiprocessing.parent_process()  # the trainer; getppid() may be a fork server
        assert worker is not None
        if os.getppid() != parent or not worker.is_alive():  # it died before prctl()
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
        threading.Thread(target=_obey, args=(worker.pid,), daemon=True).start()
        let_go_of_the_network()  # else the other workers cannot see that this one is gone
        send_small_tensors_by_value()
        if self._then is not None:
            self._then(number)


def _obey(worker: int | None) -> None:
    """Wait for a SIGTERM from the worker's process, and then end this loader process (code 0)."""
    # One that goes to every process is ignored: the worker needs its loader until it has left.
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != worker:
        pass
    os._exit(0)
