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
    """Return whether ``loader`` starts its processes by forking this process.

    Only for forks may signals be blocked while the processes start: a process started in another
    way may keep a blocked signal blocked for good.
    """
    context = loader.multiprocessing_context or multiprocessing
    return loader.num_workers > 0 and context.get_start_method() == "fork"


def make_directory_of_sockets() -> None:
    """Make the directory in which the processes of PyTorch's loader put their sockets.

    It belongs to this process, which removes it at its end. Each loader process would otherwise
    make one of its own (``pymp-*`` in the directory for temporary files), and leave it there,
    because it is ended by a signal. Call it before the processes start; later calls do nothing.
    """
    multiprocessing.util.get_temp_dir()


class LoaderProcessInit:
    """The ``worker_init_fn`` of PyTorch's loader: a function that prepares a loader process.

    PyTorch calls it in each loader process, with the number of the process. The process closes its
    copies of the ring's connections; it is killed when its worker dies, and a thread ends it at a
    SIGTERM of its worker. A fork holds copies of these connections; as long as they are open, the
    other workers cannot see that the worker is gone. Small tensors are sent by value. At the end
    the script's own ``worker_init_fn`` is called.

    Args:
        then: the ``worker_init_fn`` of the script; None: it has none.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        """Prepare this process, which is loader process ``number``, counted from 0."""
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        worker = multiprocessing.parent_process()  # the trainer; getppid() may be a fork server
        assert worker is not None
        if os.getppid() != parent or not worker.is_alive():  # it died before prctl()
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
        threading.Thread(target=_obey, args=(worker.pid,), daemon=True).start()
        let_go_of_the_network()
        send_small_tensors_by_value()
        if self._then is not None:
            self._then(number)


def _obey(worker: int | None) -> None:
    """Wait for a SIGTERM from the worker's process, and then end this loader process (code 0).

    It runs in a thread of the loader process, and does not return. A SIGTERM from elsewhere, such
    as one that goes to every process at once, is ignored, because the worker needs its loader until
    it has left the job.

    Args:
        worker: the process id of the worker; None: unknown, and every SIGTERM is ignored.
    """
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != worker:
        pass
    os._exit(0)
