"""One process of test_horovod_build.py: a ring that fails, and one that works after it.

With arguments the init succeeds, and that collective fails, for so many floats. Prints one JSON
object: how long what failed took, what it raised, and what an allreduce gave after a second init
as a world of one in the same process.
"""

import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

ALONE = {
    "RANK": "0",
    "SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_SIZE": "1",
    "CROSS_RANK": "0",
    "CROSS_SIZE": "1",
}
DEADLINE_S = 60.0
PAUSE_S = 1e-4  # between two tensors
SEND_ON_S = 0.5  # after the first error
ROOM = 2**25  # bytes; a fusion buffer has 2**27
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def send(_: torch.Tensor) -> None:
    """Rank 0 sends one tensor after the other, for each of which the ring waits for rank 1.

    And it sends on when the ring is broken: backward() does not stop at the first gradient that
    cannot be sent. Meanwhile Horovod's own thread lets go of all the tensors.
    """
    if hvd.rank() == 1:
        time.sleep(DEADLINE_S)
    failed = 0.0
    for number in itertools.count():
        try:
            hvd.allreduce_async(torch.ones(8), name=f"sent.{number}")
            time.sleep(PAUSE_S)
        except (HorovodInternalError, ValueError, RuntimeError) as error:
            failed = failed or time.monotonic()
            if time.monotonic() - failed > SEND_ON_S:
                raise HorovodInternalError(error) from error


def without_memory(_: torch.Tensor) -> None:
    """Rank 0 has no memory for the buffer in which the tensors of a group are put together."""
    if hvd.rank() == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
    try:
        hvd.grouped_allreduce([torch.ones(3), torch.ones(4)], name="group")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)


COLLECTIVES = {
    "allreduce": lambda tensor: hvd.allreduce_(tensor, name="tensor"),
    "broadcast from 0": lambda tensor: hvd.broadcast_(tensor, 0, name="tensor"),
    "broadcast from 1": lambda tensor: hvd.broadcast_(tensor, 1, name="tensor"),
    "sending on": send,
    "without memory": without_memory,
}


def main() -> None:
    """Fail, shut down, start again alone."""
    print("importing done", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        hvd.init()
        raised = ""
        if len(sys.argv) > 1:
            collective, tensor = COLLECTIVES[sys.argv[1]], torch.ones(int(sys.argv[2]))
            print("begins", flush=True)
            while True:
                start = time.monotonic()
                collective(tensor)
    except (ValueError, HorovodInternalError) as error:
        raised = type(error).__name__
    elapsed_s = time.monotonic() - start
    hvd.shutdown()
    for name, value in ALONE.items():
        os.environ[f"HOROVOD_{name}"] = value
    os.environ.pop("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    os.environ.pop("HOROVOD_GLOO_RENDEZVOUS_PORT")
    hvd.init()
    total = hvd.allreduce(torch.full((3,), 2.0), op=hvd.Sum).tolist()
    size = hvd.size()
    hvd.shutdown()
    print(json.dumps({"raised": raised, "elapsed_s": elapsed_s, "size": size, "sum": total}))


if __name__ == "__main__":
    main()
