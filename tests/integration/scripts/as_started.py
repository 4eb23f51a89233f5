"""Prints what a process can know of its own start, as JSON: the same by ``exec`` and by a fork."""

import atexit
import faulthandler
import gc
import inspect
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import threading
from pathlib import Path


class Thing:
    value = 3


def double(number: int) -> int:
    return 2 * number


def facts() -> dict[str, object]:
    main, process = sys.modules["__main__"], multiprocessing.current_process()
    signals = {int(one): str(signal.getsignal(one)) for one in sorted(signal.valid_signals())}
    return {
        "argv": (sys.argv, sys.orig_argv, sys.path, sys.warnoptions, str(sys.flags)),
        "main": (sorted(vars(main)), main.__file__, str(main.__package__)),
        "spec": (main.__spec__ and main.__spec__.name, type(main.__loader__).__name__),
        "environment": dict(os.environ),
        "place": (os.getcwd(), os.umask(0o22), os.getppid()),
        "leads": (os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()),
        "input": os.readlink("/proc/self/fd/0"),
        "open": sorted(os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "signals": (signals, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "shown": [Path("/proc/self", one).read_text() for one in ("cmdline", "comm")],
        "shown_environment": sorted(Path("/proc/self/environ").read_text().split("\0")),
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "threads": (threading.active_count(), threading.current_thread().name),
        "is_main_thread": threading.current_thread() is threading.main_thread(),
        "pickled": pickle.loads(pickle.dumps(Thing())).value,
        "source": inspect.getsource(double),
        "faulthandler": faulthandler.is_enabled(),
        "output": (sys.stdout.encoding, sys.stdout.errors, sys.stdout.write_through),
        "process": (process.name, str(multiprocessing.parent_process())),
    }


if __name__ == "__main__":
    atexit.register(print, "an exit handler", flush=True)
    here = facts()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        here["spawned"] = pool.map(double, [1, 2])
    here["recent"] = sys._getframe().f_code.co_name
    print(json.dumps(here))
    print(random.random(), bytes(multiprocessing.current_process().authkey).hex())
