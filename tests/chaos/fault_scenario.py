"""One job of the counting model under faults, and the proof that nothing was lost or counted twice.

::

    faults = [[fault("gradient", "leader")]]
    with fault_scenario(tmp_path, zk_hosts, np=3, max_np=4, faults=faults) as job:
        ...                     # scale, kill, stop; or nothing
        job.prove()             # it ends with 0, all counts are right, nothing is left

The time limits are shorter than the defaults, for these are tests of what happens after them:
the session 3 s, the pause of a slot whose worker died 1 s.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scenario import Scenario, scenario

from edl.testing.throttle import Throttle
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import children
from edl.zookeeper.session import Session

FAULTY = Path(__file__).resolve().parent / "scripts" / "faulty.py"
GONE_S = 15.0  # for the ephemeral nodes of a killed process to go
STRIKES_S = 400.0  # for all faults of a job to strike: newcomers come up slowly on a busy machine
START_S = 200.0  # for a job to start: TensorFlow takes its time to be imported

Fault = dict[str, Any]


def fault(
    point: str,
    role: str = "any",
    after: int = 4,
    size: int = 0,
    signal: str = "KILL",
    later: int = 0,
) -> Fault:
    """See scripts/faulty.py."""
    found = {"point": point, "role": role, "after": after, "size": size, "signal": signal}
    return found | {"later": later}


def refilled(size: int) -> list[Fault]:
    """Return a group of faults: one death in a step of a ring of ``size``, all with the state.

    It comes before a fault of a switch: the replacement joins, and ``size - 1`` have the state.
    After a few deaths in switches the ring may consist of one worker with the state and newcomers
    without it.
    """
    return [fault("gradient", "plain", size=size)]


def training(mode: str) -> dict[str, str]:
    """Return the environment of a fault scenario that trains by a mode of tf_counting.py."""
    return {"EDL_TEST_SCRIPT": "tf_counting.py", "EDL_TEST_MODE": mode}


def even(step_s: float) -> Throttle:
    """Return a throttle with equally long steps, so that faults strike as often as meant."""
    return Throttle(step_s, later_s=step_s)


class FaultScenario(Scenario):
    """A job of the counting model that strikes itself."""

    faults: Sequence[Sequence[Fault]] = ()
    samples = 1797
    epochs = 8
    throttled = even(0.15)
    session_s = 3.0
    end_s = 600.0
    script = FAULTY
    more = ("--exchange", "2")
    _remembered: tuple[str, ...] = ()

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.claims = self.directory / "claims"
        self.claims.mkdir()
        self.environment |= {
            "EDL_TEST_FAULTS": json.dumps([list(group) for group in self.faults]),
            "EDL_TEST_CLAIMS": str(self.claims),
        }
        super().begin(np, max_np, min_np)

    def remember(self, *lines: str) -> None:
        """Let the story of a failure tell this."""
        self._remembered = lines

    def story(self, what: str) -> str:
        """Return the end of the output, what was done to the job, and how to repeat the test."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        return "\n".join(
            [
                super().describe(what),
                f"--- all output: {self._output}",
                *self._remembered,
                f"--- again: .venv/bin/python -m pytest '{test}'",
            ]
        )

    @property
    def struck(self) -> int:
        return len(list(self.claims.iterdir()))

    def wait_for_strikes(self, timeout_s: float = STRIKES_S, to_come: int = 0) -> None:
        expected = sum(len(group) for group in self.faults) - to_come
        self.wait(lambda _: self.struck == expected, f"{expected} faults struck", timeout_s)

    def wait_for_ends(self) -> None:
        """Wait until those that were struck have left, also who takes its time after a SIGTERM."""
        left = self._struck_pids()
        self.wait(lambda now: not left & {m["pid"] for m in now["members"]}, f"end of {left}")

    def _struck_pids(self, but: str = "") -> set[int]:
        """Return the process ids that faults have struck at any point other than ``but``."""
        places = {path: tuple(map(int, path.name.split("."))) for path in self.claims.iterdir()}
        return {
            int(path.read_text().split()[1])
            for path, (group, index) in places.items()
            if self.faults[group][index]["point"] != but
        }

    def prove(
        self, workers: int | None = None, code: int = 0, errors: bool = False
    ) -> list[dict[str, Any]]:
        """As :meth:`Scenario.prove`; and who was struck is gone, and no node of the job is left."""
        reports = super().prove(workers, code, errors)
        # A job of fits ends with its scripts: then each has reported before it comes to the end.
        ends_last = self.environment.get("EDL_TEST_MODE", "").startswith("fit")
        left = self._struck_pids(but="finish" if ends_last else "")
        assert not left & {report["pid"] for report in reports}, self.describe(
            f"{left} were struck"
        )
        self._nobody_is_left()
        return reports

    def _nobody_is_left(self) -> None:
        """No ephemeral node of the job; its processes were looked for by :meth:`end`."""
        with self.store() as store:
            deadline = time.monotonic() + GONE_S
            while left := self._ephemeral(store.session):
                assert time.monotonic() < deadline, self.describe(f"these nodes are left: {left}")
                time.sleep(0.1)

    def _ephemeral(self, session: Session) -> list[str]:
        paths = JobPaths(self.name)
        parents = (paths.members, paths.hosts, paths.election, paths.ids)
        listed = session.read_all("look what is left", [children(parent) for parent in parents])
        return [
            f"{parent}/{child}"
            for parent, found in zip(parents, listed, strict=True)
            for child in found or ()
        ]


@contextmanager
def fault_scenario(
    directory: Path,
    zookeeper: str,
    *,
    np: int,
    max_np: int,
    min_np: int = 1,
    faults: Sequence[Sequence[Fault]] = (),
    environment: dict[str, str] | None = None,
    **settings: Any,
) -> Iterator[FaultScenario]:
    """Run a job under ``faults``; kill it at the end of the block if it still runs."""
    with scenario(
        directory,
        zookeeper,
        np=np,
        max_np=max_np,
        min_np=min_np,
        environment=environment,
        kind=FaultScenario,
        faults=faults,
        **settings,
    ) as job:
        yield job


def survives(directory: Path, zookeeper: str, **settings: Any) -> None:
    """Let all faults of ``settings`` strike a job, which then must have counted right."""
    with fault_scenario(directory, zookeeper, **settings) as job:
        job.wait_for_strikes()
        job.prove()
