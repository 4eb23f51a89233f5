"""Let a ring of two end by agreement while rank 0 has an allreduce that cannot end.

    ending.py dies|fails FOLDER, with nccl_faults.so preloaded

Rank 1 leaves the allreduce out (a fault of nccl_faults.c), and asks Horovod to shut down. A second
later it is killed (dies), or NCCL reports an error to rank 0 (fails). Rank 0 must get an error for
the allreduce, and go on in a ring of its own.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

PLACE = ("RANK", "LOCAL_RANK", "CROSS_RANK", "SIZE", "LOCAL_SIZE", "CROSS_SIZE")
LIMIT_S = 20.0


def environment(rank: int, size: int) -> dict[str, str]:
    values = (rank, rank, 0, size, size, 1)
    return {f"HOROVOD_{name}": str(value) for name, value in zip(PLACE, values, strict=True)}


def train(rank: int) -> None:
    import horovod.torch as hvd
    import torch
    from horovod.common.exceptions import HorovodInternalError

    hvd.init()
    torch.cuda.set_device(0)
    tensor = torch.ones(1 << 22, device="cuda")
    hvd.allreduce(tensor, name="first")
    if rank == 1:
        Path(os.environ["EDL_TEST_NCCL_FAULT"]).write_text("skip")
    last = hvd.allreduce_async(tensor, name="last")
    if rank == 0:
        try:
            hvd.synchronize(last)
        except HorovodInternalError:
            print("failed", flush=True)
    else:
        hvd.synchronize(last)
        print("left out", flush=True)
    hvd.shutdown()
    os.environ.update(environment(0, 1))
    del os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    hvd.init()
    print(hvd.allreduce(tensor, op=hvd.Sum, name="alone").sum().item() == 1 << 22, flush=True)
    hvd.shutdown()


def start(rank: int, folder: Path, port: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__, str(rank)],
        env={
            **os.environ,
            **environment(rank, 2),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "NCCL_HOSTID": str(rank),
            "EDL_TEST_NCCL_FAULT": str(folder / f"fault{rank}"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def main(mode: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ranks = [start(rank, folder, server.server_port) for rank in (0, 1)]
    watchdog = threading.Timer(120, lambda: [one.kill() for one in ranks])
    watchdog.start()
    try:
        assert ranks[1].stdout is not None
        said = ranks[1].stdout.readline()
        if said != "left out\n":
            sys.exit(f"rank 1 said {said!r}")
        time.sleep(1.0)  # they agree to end the ring
        began = time.monotonic()
        if mode == "dies":
            ranks[1].kill()
        else:
            (folder / "fault0").write_text("remote error")
        output, _ = ranks[0].communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"rank 0 hangs: nothing within {LIMIT_S:g} s")
    finally:
        watchdog.cancel()
        for one in ranks:
            one.kill()
    if output != "failed\nTrue\n" or ranks[0].returncode != 0:
        sys.exit(f"rank 0 said {output!r}, and ended with {ranks[0].returncode}")
    print(f"rank 0 went on, and was through {time.monotonic() - began:.2f} s after")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train(int(sys.argv[1]))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
