"""`make demo`: the digits example grows from 2 to 4 workers and shrinks to 3 while it trains.

Does by itself what you would do in two terminals: `edl run` in one, `edl scale` in the other.
Every figure of the table at its end comes from `edl events --json`. Ends with 0 when all went well.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).resolve().parent
EDL = Path(sys.executable).with_name("edl")
JOB = f"demo-{os.getpid()}"
SCRIPT = [sys.executable, str(HERE / "torch_digits.py"), "--epochs", "24", "--step-delay", "0.1"]
PATIENCE_S = 180.0  # for each stage, on a slow machine

console = Console(highlight=False)
began = time.monotonic()


class DemoFailed(Exception):
    """The demo did not go as it should; the text says why."""


def main() -> int:
    started_zookeeper = not os.environ.get("EDL_ZOOKEEPER") and edl("zookeeper", "status")[0] != 0
    job = Run()
    try:
        say(f"edl run -np 2 --max-np 4 --job {JOB} python torch_digits.py --epochs 24")
        job.start()
        job.wait(lambda now: now["world_size"] == 2 and now["step"] >= 20, "2 workers that train")
        say("two workers train; look on from another terminal with: edl status --watch")

        asked = {}
        for size in (4, 3):
            asked[size] = time.time()
            say(f"edl scale {JOB} --np {size}")
            must("scale", JOB, "--np", str(size))
            arrived = job.wait(lambda now, size=size: trains(now, size), f"{size} workers")
            say(f"{size} workers train, {time.time() - asked[size]:.1f} s after the request")
            goal = arrived["step"] + 25
            job.wait(lambda now, goal=goal: now["step"] >= goal, "25 more steps")

        say("now it trains to its end")
        job.finish()
        show(told_events(), asked, job.accuracy())
        return 0
    except DemoFailed as error:
        console.print(f"demo: {error}", style="bold red")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        job.close()
        if started_zookeeper:
            edl("zookeeper", "stop")


def say(text: str) -> None:
    console.print(Text(f"{time.monotonic() - began:5.1f} s  {text}", style="bold cyan"))


def edl(*arguments: str) -> tuple[int, str]:
    """Run an `edl` command; its exit code and its output."""
    done = subprocess.run(
        [EDL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    return done.returncode, done.stdout


def must(*arguments: str) -> str:
    code, output = edl(*arguments)
    if code != 0:
        raise DemoFailed(f"edl {' '.join(arguments)} ended with {code}: {output.strip()}")
    return output


def trains(now: dict, size: int) -> bool:
    """All that are wanted are in the ring, and nobody else is left of the job."""
    stages = [member["stage"] for member in now["members"]]
    return now["world_size"] == size and stages == ["active"] * size


class Run:
    """`edl run` as a child whose output is shown."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._status = {"world_size": 0, "step": 0, "members": []}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [EDL, "run", "-np", "2", "--max-np", "4", "--job", JOB, *SCRIPT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process, which ends the job
        )
        self._reader.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._output += line
            console.print(Text(f"         {line.rstrip()}", style="dim"))

    def wait(self, condition, what: str) -> dict:
        """Watch `edl status --watch --json` until it fulfils ``condition``; that status."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(now := self._status):
            if self._process.poll() is not None:
                raise DemoFailed(f"the job ended with {self._process.returncode} before {what}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"no {what} within {PATIENCE_S:g} s; the last answer: {now}")
            time.sleep(0.1)
        return now

    def _watch(self) -> None:
        """Keep the newest answer of `edl status`, from the moment that the job is known."""
        while self._process.poll() is None:
            command = [EDL, "status", JOB, "--watch", "--json"]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as watcher:
                for line in watcher.stdout:
                    self._status = json.loads(line)
            time.sleep(0.5)  # it is not known yet; the workers need this machine, too

    def finish(self) -> None:
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the job did not end within {PATIENCE_S:g} s") from None
        self._reader.join(5)
        if code != 0:
            raise DemoFailed(f"edl run ended with {code}")

    def accuracy(self) -> float:
        found = re.search(r"accuracy ([\d.]+) epochs", self._output)
        if found is None:
            raise DemoFailed("the script did not print its final accuracy")
        return float(found[1])

    def close(self) -> None:
        """End the job if it still runs: the gentle way, then the other."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if self._process is None or self._process.poll() is not None:
                return
            os.killpg(self._process.pid, number)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                continue


def told_events() -> list[dict]:
    return [json.loads(line) for line in must("events", JOB, "--json").splitlines()]


def show(events: list[dict], asked: dict[int, float], accuracy: float) -> None:
    """Print the table: what happened, and what it cost the workers that were there before."""
    table = Table(title="What the changes cost those who were training", title_style="bold")
    table.add_column("event")
    for name in ("generation", "lead time", "old worker", "stall", "median step", "accuracy"):
        table.add_column(name, justify="right")
    first = next(event for event in events if event["kind"] == "generation")
    table.add_row(first["reason"], str(first["generation"]), "", "", "", "", "")
    switches = [event for event in events if event["kind"] == "switch"]
    if len(switches) < 2:
        raise DemoFailed(
            f"{len(switches)} switches are in the event log; at least 2 were asked for"
        )
    for event in switches:
        old = {w: parts for w, parts in event["workers"].items() if parts["role"] == "old"}
        request = asked.get(event["world_size"])
        happened = datetime.fromisoformat(event["time"]).timestamp()
        table.add_section()
        table.add_row(
            event["reason"].split(":")[0] + f": {event['world_size']} workers",
            str(event["generation"]),
            f"{happened - request:.1f} s" if request else "",
            "\n".join(old),
            "\n".join(f"{parts['stall_s'] * 1000:.0f} ms" for parts in old.values()),
            "\n".join(f"{parts['median_step_s'] * 1000:.0f} ms" for parts in old.values()),
            "",
        )
    table.add_section()
    last = events[-1]
    table.add_row(last["reason"], str(last["generation"]), "", "", "", "", f"{accuracy:.1%}")
    console.print()
    console.print(table)
    console.print(
        "lead time: from `edl scale` to the switch; the old workers trained on.\n"
        "stall: how long an old worker stood still in the switch."
    )


if __name__ == "__main__":
    sys.exit(main())
