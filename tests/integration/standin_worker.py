"""A worker without a ring: the real daemon, a training loop that only sleeps.

It registers, leads, joins and leaves as a real worker does, without Horovod and without a
framework, so what the agent and the command line do can be tested in seconds.

    --steps N          finish after N steps (0: never)
    --step-s S         length of a step
    --fail-at N        exit with --code when step N is reached
    --fail-slot S      ... only in this slot
    --deaf             ignore SIGTERM and what the leader says
"""

import argparse
import signal
import sys
import time

from edl import config
from edl.core.facts import JobState, Stage
from edl.daemon.daemon import Daemon
from edl.daemon.mailbox import Mailbox, Progress
from edl.errors import WorkerEvicted

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--fail-slot", type=int, default=-1)
parser.add_argument("--code", type=int, default=3)
parser.add_argument("--deaf", action="store_true")
args = parser.parse_args()

settings = config.load()
mailbox = Mailbox()
daemon = Daemon(settings, mailbox)


def end(number: int | None = None, frame: object = None) -> None:
    """What a real worker does on SIGTERM: leave with a switch, or now if it is in no ring."""
    if joined:
        daemon.leave_requested = True
    else:
        raise SystemExit(0)


joined = False
signal.signal(signal.SIGTERM, signal.SIG_IGN if args.deaf else end)
member, _ = daemon.start()
print(f"w{member.id} is here", flush=True)
daemon.stand_for_election()
daemon.set_stage(Stage.READY)
try:
    generation = mailbox.wait_for_generation(
        lambda g: g.rank_of(member.id) is not None or not g.seats, time.monotonic() + 60
    )
except WorkerEvicted as error:
    daemon.close()
    sys.exit(str(error))
step = 0
while generation is not None and generation.rank_of(member.id) is not None:
    joined = True
    daemon.set_stage(Stage.ACTIVE, generation.number)
    while args.deaf or mailbox.newest(generation.number) is None:
        time.sleep(args.step_s)
        step += 1
        mailbox.report(
            Progress(generation.number, len(generation.seats), step, 0, step, args.steps)
        )
        if step == args.fail_at and args.fail_slot in (-1, settings.slot):
            print(f"w{member.id} fails on purpose", flush=True)
            daemon.close()
            sys.exit(args.code)
        if step == args.steps:
            daemon.end_job(JobState.FINISHED, f"trained {step} steps")
            daemon.set_stage(Stage.FINISHED)
            daemon.flush(5.0)
            daemon.close()
            sys.exit(0)
    generation = mailbox.newest(generation.number)
print(f"w{member.id} leaves after step {step}", flush=True)
daemon.close()
