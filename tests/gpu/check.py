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
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LONG_S, RECOVERS_S = 180.0, 30.0  # limits: of a start or an end of a job, and of a recovery
SAMPLES = 960
LONE_HOSTS = {  # NCCL sends by sockets, for each worker is a host of its own
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}


class Failed(Exception):
    """A scenario did not go as it must; the text says how."""


class Step(NamedTuple):
    """The last step of a worker that is alive."""

    rank: int
    size: int
    generation: int
    number: int


@dataclass
class Job:
    """A job on this machine: `edl run` and what its workers write into a folder."""

    name: str
    folder: Path
    device: str
    preload: str
    script: str = "counting_gpu.py"
    epochs: int = 4
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def fault(self) -> Path:
        return self.folder / "fault"

    def run(self, np: int, most: int, *script: str, extra: tuple[str, ...] = ()) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            **(LONE_HOSTS if self.device == "cuda" else {}),
            "LD_PRELOAD": self.preload,
            "EDL_TEST_NCCL_FAULT": str(self.fault),
            **self.environment,
        }
        out = ["--out", str(self.folder / "out"), "--device", self.device]
        run = ["run", "-np", str(np), "--max-np", str(most), "--slots", str(most)]
        own = [sys.executable, str(HERE / self.script), *out, "--epochs", str(self.epochs)]
        with (self.folder / "run.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._edl, *run, "--job", self.name, *extra, *own, *script],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def edl(self, *words: str) -> None:
        subprocess.run([*self._edl, *words], env=self.environment, capture_output=True, timeout=60)

    def steps(self) -> dict[int, Step]:
        """Return the last step of each living worker, by its pid."""
        found = {}
        for path in (self.folder / "out").glob("steps.*"):
            pid, lines = int(path.suffix[1:]), path.read_text().splitlines()
            if lines and _is_running(pid):
                words = lines[-1].split()
                if len(words) == 5:
                    found[pid] = Step(*map(int, words[1:]))
        return found

    def wait(
        self, what: str, condition: Callable[[dict[int, Step]], bool], limit_s: float = LONG_S
    ) -> None:
        assert self.process is not None
        deadline = time.monotonic() + limit_s
        while not condition(self.steps()):
            if self.process.poll() is not None:
                raise Failed(f"the job ended with {self.process.returncode} before: {what}")
            if time.monotonic() > deadline:
                raise Failed(f"not within {limit_s:g} s: {what}; now {self.steps()}")
            time.sleep(0.02)

    def trains(self, workers: int, *, steps: int = 10) -> None:
        """Wait until all ``workers`` are in one ring, and have made so many steps in it."""

        def full(now: dict[int, Step]) -> bool:
            return len(now) == workers and all(one.size == workers for one in now.values())

        self.wait(f"{workers} workers train", full)
        first = max((one.number for one in self.steps().values()), default=0)
        self.wait("steps", lambda now: any(s.number >= first + steps for s in now.values()))

    def recovers(self, before: dict[int, Step]) -> float:
        """Wait for a step in a newer ring; return after how many seconds it was complete."""
        began = time.monotonic()
        generation = max(one.generation for one in before.values())
        self.wait(
            "a step in a newer ring",
            lambda now: any(s.generation > generation and p in before for p, s in now.items()),
            RECOVERS_S,
        )
        return time.monotonic() - began

    def ends(self) -> None:
        """Wait for the end of the job, and judge what its workers have reported."""
        assert self.process is not None
        try:
            code = self.process.wait(LONG_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the job did not end; now {self.steps()}") from None
        if code:
            raise Failed(f"edl run ended with {code}")
        paths = sorted((self.folder / "out").glob("*.json"))
        reports = [json.loads(path.read_text()) for path in paths]
        if not reports:
            raise Failed("no worker trained to the end")
        if self.script == "counting_gpu.py":
            for one in reports:
                exact = one["counts"] == {str(self.epochs): SAMPLES} and not one["wrong"]
                if not exact or one["off"] > 1e-3 or one["device"] != self.device:
                    raise Failed(f"wrong counts: {json.dumps({**one, 'w': '...'})}")
        if any(one != reports[0] for one in reports if "w" in one):
            raise Failed("the workers' models differ")

    def kill(self) -> None:
        """End the job, whatever it does."""
        if self.process is not None and self.process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(4.0)
                    break
        for pid in self.steps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def _edl(self) -> list[str]:
        return [sys.executable, "-m", "edl.cli.main"]


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


def kill(job: Job, workers: int = 2, kills: int = 8) -> Iterator[str]:
    """Kill a random worker at a random moment, again and again."""
    job.run(workers, workers, "--least", str(workers))
    took = []
    for number in range(kills):
        job.trains(workers)
        time.sleep(random.Random(number).random())
        before = job.steps()
        victim = random.Random(number).choice(sorted(before))
        os.kill(victim, signal.SIGKILL)
        took.append(job.recovers({pid: s for pid, s in before.items() if pid != victim}))
    job.trains(workers)
    job.ends()
    yield f"a survivor's next step {min(took):.2f} to {max(took):.2f} s after each of {kills} kills"


def kill_of_three(job: Job) -> Iterator[str]:
    """Kill workers among three."""
    yield from kill(job, workers=3, kills=5)


def kill_with_settings(job: Job) -> Iterator[str]:
    """Kill workers with two streams of NCCL, and early completion, which edl turns off."""
    job.environment = {"HOROVOD_NUM_NCCL_STREAMS": "2", "HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}
    yield from kill(job)


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
    """Let a worker freeze there."""
    yield from _fault_of_communicator(job, "freeze")


def fails_in_init(job: Job) -> Iterator[str]:
    """Let NCCL fail there on one worker, as without memory."""
    yield from _fault_of_communicator(job, "error")


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
    """Stop with a checkpoint, and go on from it."""
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
    """Give NCCL two workers on one GPU, which it refuses: the reason is said."""
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
        freeze,
        dies_in_init,
        freezes_in_init,
        fails_in_init,
        mixed_precision,
        resume,
        one_gpu_for_two,
    )
}
NEED_NCCL = {"dies-in-init", "freezes-in-init", "fails-in-init", "one-gpu-for-two"}


def _is_running(pid: int) -> bool:
    """Return whether a process is alive, and neither ended nor stopped by a signal."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X", "T")


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
    folder = args.folder or Path(tempfile.mkdtemp(prefix="edl-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    preload = folder / "nccl_faults.so"
    compile_ = ["cc", "-shared", "-fPIC", "-o", str(preload), str(HERE / "nccl_faults.c"), "-ldl"]
    subprocess.run(compile_, check=True)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        tried = [pool.submit(_try, n, folder, args.device, str(preload)) for n in names]
        return 0 if all(one.result() for one in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
