"""Try edl and its build of Horovod on a machine with one GPU, which all workers of a job share.

    make gpu [ARGS="kill freeze --device cpu"]

NCCL refuses two workers of one host on one GPU. So each worker tells NCCL that it is a host of its
own, and NCCL sends through sockets of the loopback interface. That tries everything but NCCL's fast
ways (NVLink, shared memory, InfiniBand).

Each scenario prints a line about what it has seen. It fails if a job hangs or ends with an error,
or if a sample was not trained exactly once an epoch. `--device cpu` tries the scenarios themselves,
without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from job import LONE_HOSTS, LONG_S, RECOVERS_S, Failed, Job
from logical import logical, logical_costs

HERE = Path(__file__).parent


def scale(job: Job) -> Iterator[str]:
    """Train with two workers, three, two again; checkpoints beside it."""
    job.epochs = 12  # a third worker needs some 15 s to start
    job.run(2, 3, "--checkpoint", str(job.folder / "checkpoints"))
    job.trains(2)
    for size in (3, 2):
        job.edl("scale", job.name, "--np", str(size))
        job.trains(size)
        yield f"{size} workers"
    job.ends()
    yield f"{len(list((job.folder / 'checkpoints').glob('step-*')))} checkpoints"


def kill(job: Job, workers: int = 2, kills: int = 8, lowest: int = 0) -> Iterator[str]:
    """Kill a random worker, of a rank from ``lowest``, at a random moment, again and again."""
    job.run(workers, workers, "--least", str(workers))
    took = []
    for number in range(kills):
        job.trains(workers)
        time.sleep(random.Random(number).random())
        before = job.steps()
        choice = sorted(pid for pid, step in before.items() if step.rank >= lowest)
        victim = random.Random(number).choice(choice)
        os.kill(victim, signal.SIGKILL)
        took.append(job.recovers({pid: s for pid, s in before.items() if pid != victim}))
    job.trains(workers)
    job.ends()
    yield f"a survivor's next step {min(took):.2f} to {max(took):.2f} s after each of {kills} kills"


def kill_of_three(job: Job) -> Iterator[str]:
    yield from kill(job, workers=3, kills=5)


def kill_with_settings(job: Job) -> Iterator[str]:
    """Kill workers with two streams of NCCL, and early completion, which edl turns off."""
    job.environment = {"HOROVOD_NUM_NCCL_STREAMS": "2", "HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}
    yield from kill(job)


def kill_with_timeline(job: Job) -> Iterator[str]:
    """Kill workers while rank 0 writes a timeline: an operation is reported after its last event.

    Without that an operation that fails has been copied into the buffer of several tensors, and not
    out of it.
    """
    job.environment = {"HOROVOD_TIMELINE": str(job.folder / "timeline.json")}
    yield from kill(job, kills=6, lowest=1)
    timelines, copied = list(job.folder.glob("timeline.g*.json")), 0
    for path in timelines:
        began = re.findall(
            r'"ph": "B", "name": "MEMCPY_(IN|OUT)_FUSION_BUFFER".*?"pid": (\d+)', path.read_text()
        )
        ways = {
            way: Counter(tensor for one, tensor in began if one == way) for way in ("IN", "OUT")
        }
        copied += ways["IN"].total()
        if ways["IN"] != ways["OUT"]:
            raise Failed(
                f"tensors were copied in and not out: {ways['IN'] - ways['OUT']} in {path}"
            )
    if not copied:
        raise Failed("no tensor was copied into a buffer")
    yield f"{copied} tensors copied in and out in {len(timelines)} timelines"


def dies_as_another_leaves(job: Job, times: int = 4) -> Iterator[str]:
    """Kill a worker at a random moment of a switch by which another one leaves."""
    job.epochs = 8
    job.run(3, 3, "--least", "3")
    took = []
    for number in range(times):
        job.trains(3)
        job.edl("scale", job.name, "--np", "2")
        time.sleep(random.Random(number).random())
        victim = random.Random(number).choice(sorted(job.steps()))
        os.kill(victim, signal.SIGKILL)
        began, reached = time.monotonic(), max(step.number for step in job.steps().values())
        job.wait(
            "the others go on",
            lambda now, last=reached + 1: any(step.number > last for step in now.values()),
            RECOVERS_S,
        )
        took.append(time.monotonic() - began)
        job.edl("scale", job.name, "--np", "3")
    job.trains(3)
    job.ends()
    yield f"the others' next two steps {min(took):.2f} to {max(took):.2f} s after {times} kills"


def freeze(job: Job) -> Iterator[str]:
    """Freeze a worker: its connections stay open, so NCCL notices nothing."""
    job.run(2, 2, "--least", "2")
    job.trains(2)
    before = job.steps()
    victim = min(before)
    os.kill(victim, signal.SIGSTOP)
    took = job.recovers({pid: step for pid, step in before.items() if pid != victim})
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    yield f"the survivor's next step {took:.2f} s after"
    job.trains(2)
    job.ends()


def _fault_of_communicator(job: Job, fault: str) -> Iterator[str]:
    job.run(2, 3, "--least", "3")
    job.trains(2)
    before = job.steps()
    job.fault.write_text(fault)
    job.edl("scale", job.name, "--np", "3")
    job.wait("the fault", lambda now: not job.fault.exists())
    yield f"a step {job.recovers(before):.2f} s after"
    job.trains(3)
    job.ends()


def dies_in_init(job: Job) -> Iterator[str]:
    """Let a worker die where NCCL's communicator of a new ring is initialized."""
    yield from _fault_of_communicator(job, "die")


def freezes_in_init(job: Job) -> Iterator[str]:
    yield from _fault_of_communicator(job, "freeze")


def fails_in_init(job: Job) -> Iterator[str]:
    """Let NCCL fail there on one worker, as without memory."""
    yield from _fault_of_communicator(job, "error")


def _communicators_end(job: Job, fault: str, rounds: int = 3) -> Iterator[str]:
    """Let a worker die when all have initialized a ring's communicator, which then must end."""
    job.epochs = 8
    job.run(3, 3, "--least", "3")
    job.trains(3)
    memory = [_gpu_memory(job.steps())]
    for _ in range(rounds):
        before = job.steps()
        victim = max(before, key=lambda pid: before[pid].rank)
        os.kill(victim, signal.SIGKILL)
        job.recovers({pid: step for pid, step in before.items() if pid != victim})
        job.fault.write_text(fault)  # for the ring with the replacement
        job.wait("the fault", lambda now: not job.fault.exists())
        job.trains(3)
        job.wait(
            "each worker has one communicator",
            lambda now: all(job.communicators(pid) == 1 for pid in now),
            RECOVERS_S,
        )
        memory.append(_gpu_memory(job.steps()))
    old = set(memory[0]).intersection(*memory)
    job.ends()
    each = [" ".join(str(one[pid]) for one in memory) for pid in sorted(old)]
    yield f"MiB of the GPU of who was there all the time: {'; '.join(each) or 'nobody was'}"


def dies_after_init(job: Job) -> Iterator[str]:
    """Let a worker die when NCCL's communicator of a new ring is initialized everywhere."""
    yield from _communicators_end(job, "after")


def late_in_init(job: Job) -> Iterator[str]:
    """Let the others be late there, so that they have left the initialization behind by then."""
    yield from _communicators_end(job, "late")


def _at_the_end(job: Job, mode: str) -> Iterator[str]:
    command = [sys.executable, str(HERE / "ending.py"), mode, str(job.folder)]
    env = {**os.environ, **LONE_HOSTS, "LD_PRELOAD": job.preload}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG_S)
    if done.returncode:
        (job.folder / "run.log").write_text(done.stderr)
        raise Failed((done.stderr.strip().splitlines() or ["no output"])[-1])
    yield done.stdout.strip()


def dies_at_the_end(job: Job) -> Iterator[str]:
    """Let a worker die when a ring has ended by agreement, with an allreduce under way."""
    yield from _at_the_end(job, "dies")


def fails_at_the_end(job: Job) -> Iterator[str]:
    """Let NCCL report an error then."""
    yield from _at_the_end(job, "fails")


def mixed_precision(job: Job) -> Iterator[str]:
    """Train in float16 with GradScaler, Adam, SyncBatchNorm: a worker joins, one is killed."""
    job.script, job.epochs = "mixed_precision.py", 16
    job.run(2, 3)
    job.trains(2)
    job.edl("scale", job.name, "--np", "3")
    job.trains(3)
    before = job.steps()
    victim = next(pid for pid, step in before.items() if step.rank == 1)
    os.kill(victim, signal.SIGKILL)
    took = job.recovers({pid: step for pid, step in before.items() if pid != victim})
    yield f"the survivors' next step {took:.2f} s after a kill"
    job.ends()
    reports = [json.loads(path.read_text()) for path in (job.folder / "out").glob("*.json")]
    if len({one["sum"] for one in reports}) != 1 or max(one["loss"] for one in reports) > 0.8:
        raise Failed(f"not trained, or not alike: {reports}")


def resume(job: Job) -> Iterator[str]:
    script = ("--checkpoint", str(job.folder / "checkpoints"), "--least", "3")
    job.run(2, 2, *script)
    job.trains(2)
    job.edl("stop", job.name)
    assert job.process is not None
    job.process.wait(LONG_S)
    job.run(1, 2, *script[:2], extra=("--resume",))
    job.ends()
    yield "resumed"


def one_gpu_for_two(job: Job) -> Iterator[str]:
    job.run(2, 2, "--same-host")
    said = "NCCL refuses two workers on one GPU"
    log = job.folder / "run.log"
    job.wait("the reason", lambda now: said in log.read_text(errors="replace"), LONG_S)
    yield "the reason is said"


SCENARIOS: dict[str, Callable[[Job], Iterator[str]]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        scale,
        kill,
        kill_of_three,
        kill_with_settings,
        kill_with_timeline,
        dies_as_another_leaves,
        freeze,
        dies_in_init,
        freezes_in_init,
        fails_in_init,
        dies_after_init,
        late_in_init,
        dies_at_the_end,
        fails_at_the_end,
        mixed_precision,
        resume,
        one_gpu_for_two,
        logical,
        logical_costs,
    )
}
NEED_NCCL = {
    *("dies-in-init", "freezes-in-init", "fails-in-init", "dies-after-init", "late-in-init"),
    *("dies-at-the-end", "fails-at-the-end", "kill-with-timeline", "one-gpu-for-two"),
}


def _gpu_memory(pids: Iterable[int]) -> dict[int, str]:
    """Return how much of the GPU's memory each process has, in MiB, as far as nvidia-smi knows."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, timeout=60).stdout.splitlines()
    used = {pid.strip(): memory.strip() for pid, _, memory in (one.partition(",") for one in lines)}
    return {pid: used.get(str(pid), "?") for pid in pids}


def _try(name: str, folder: Path, device: str, preload: str) -> bool:
    job, began = Job(f"gpu-{name}", folder / name, device, preload), time.monotonic()
    said, good = [], True
    try:
        said.extend(SCENARIOS[name](job))
    except (Failed, subprocess.TimeoutExpired) as failure:
        said.append(f"FAILED: {failure}; see {job.folder / 'run.log'}")
        good = False
    finally:
        job.kill()
    print(f"{name}: {'; '.join(said)} ({time.monotonic() - began:.0f} s)", flush=True)
    return good


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("scenario", nargs="*", help=f"default: all of {', '.join(SCENARIOS)}")
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--side-by-side", type=int, default=1, help="scenarios at a time")
    options.add_argument("--folder", type=Path, help="for logs; default: a new one")
    args = options.parse_args()
    if unknown := set(args.scenario) - set(SCENARIOS):
        options.error(f"no scenario {', '.join(sorted(unknown))}")
    names = args.scenario or [n for n in SCENARIOS if args.device == "cuda" or n not in NEED_NCCL]
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="edl-gpu-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    preload = folder / "nccl_faults.so"
    compile_ = ["cc", "-shared", "-fPIC", "-o", str(preload), str(HERE / "nccl_faults.c"), "-ldl"]
    subprocess.run(compile_, check=True)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        tried = [pool.submit(_try, n, folder, args.device, str(preload)) for n in names]
        return 0 if all(one.result() for one in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
