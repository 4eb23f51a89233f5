"""One job of the counting model under faults, and the proof that nothing was lost or counted twice.

::

    with ordeal(tmp_path, zk_hosts, np=3, max_np=4, faults=[[fault("gradient", "leader")]]) as job:
        ...                     # scale, kill, stop; or nothing
        job.prove()             # it ends with 0, all counts are right, nothing is left

The time limits are shorter than the defaults, for these are tests of what happens after them:
the session 3 s, the pause of a slot whose worker died 1 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs import Job

from edl.coordination.access import Access
from edl.coordination.paths import JobPaths
from edl.coordination.reads import children
from edl.coordination.session import Session
from edl.coordination.store import JobStore

FAULTY = Path(__file__).resolve().parent / "scripts" / "faulty.py"
SESSION_S = 3.0
GONE_S = 15.0  # for the ephemeral nodes of a killed process to go

Fault = dict[str, Any]


def fault(
    point: str, role: str = "any", after: int = 4, size: int = 0, signal: str = "KILL"
) -> Fault:
    """See scripts/faulty.py."""
    return {"point": point, "role": role, "after": after, "size": size, "signal": signal}


class Ordeal(Job):
    """A job of the counting model."""

    end_s = 180.0  # for a job to end once nobody disturbs it any more
    _remembered: tuple[str, ...] = ()
    samples = 1797
    epochs = 8
    batch_size = 4
    num_workers = 0
    step_delay_s = 0.15  # until all faults have struck

    def begin(self, faults: Sequence[Sequence[Fault]], np: int, min_np: int, max_np: int) -> None:
        self.groups = [list(group) for group in faults]
        self.slow = self.directory / "slow"
        self.slow.touch()
        self.claims = self.directory / "claims"
        self.claims.mkdir()
        self.reports_in = self.directory / "reports"
        self.reports_in.mkdir()
        self.environment |= {
            "EDL_TEST_FAULTS": json.dumps(self.groups),
            "EDL_TEST_CLAIMS": str(self.claims),
            "EDL_SESSION_TIMEOUT_S": str(SESSION_S),
            "EDL_BACKOFF_MAX_S": "1",
            "EDL_LOG": "INFO",
            "EDL_SECRET": secrets.token_hex(32),
        }
        options = {
            "--out": self.reports_in,
            "--samples": self.samples,
            "--epochs": self.epochs,
            "--batch-size": self.batch_size,
            "--num-workers": self.num_workers,
            "--step-delay": self.step_delay_s,
            "--slow": self.slow,
        }
        words = [str(word) for option in options.items() for word in option]
        self.run(FAULTY, *words, np=np, min_np=min_np, max_np=max_np)

    @contextmanager
    def store(self) -> Iterator[JobStore]:
        """The job as ZooKeeper has it."""
        with self._session() as session:
            yield JobStore(session, self.name)

    def remember(self, *lines: str) -> None:
        """Let the story of a failure tell this."""
        self._remembered = lines

    def story(self, what: str) -> str:
        """The end of the output and where all is, what was done to the job, how to repeat it."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        return "\n".join(
            [
                super().story(what),
                f"--- all output: {self._output}",
                *self._remembered,
                f"--- again: .venv/bin/python -m pytest '{test}'",
            ]
        )

    def hurry(self) -> None:
        """No more delay in the steps."""
        self.slow.unlink(missing_ok=True)

    @property
    def agent_pid(self) -> int:
        """The process of `edl run`."""
        assert self._process is not None
        return self._process.pid

    @property
    def struck(self) -> int:
        """How many faults have struck."""
        return len(list(self.claims.iterdir()))

    def wait_for_strikes(self, timeout_s: float = 120.0) -> None:
        """Wait until all faults have struck."""
        expected = sum(len(group) for group in self.groups)
        self.wait(lambda _: self.struck == expected, f"{expected} faults struck", timeout_s)

    def prove(self, code: int = 0) -> list[dict[str, Any]]:
        """Wait for the end; then each sample was counted once an epoch, and nothing is left.

        Args:
            code: that `edl run` ends with.

        Returns:
            The reports of the workers that trained to the end.
        """
        self.hurry()
        ended = self.end(self.end_s)
        assert ended == code, self.story(f"edl run ended with {ended}")
        reports = [json.loads(path.read_text()) for path in self.reports_in.glob("*.json")]
        story = self.story(f"the counts are wrong: {reports}")
        assert reports, story
        left = {int(path.read_text().split()[1]) for path in self.claims.iterdir()}
        assert not left & {report["pid"] for report in reports}, story
        for report in reports:
            assert report["wrong"] == [], story
            assert report["counts"] == {str(self.epochs): self.samples}, story
            for epoch in report["epochs"]:
                assert epoch["counts"] == {str(epoch["epoch"] + 1): self.samples}, story
        assert len({report["w_sha256"] for report in reports}) == 1, story
        assert len({report["steps"] for report in reports}) == 1, story
        assert len({report["rings"][-1]["generation"] for report in reports}) == 1, story
        self._nobody_is_left()
        return reports

    def _nobody_is_left(self) -> None:
        """No ephemeral node of the job; its processes were looked for by :meth:`end`."""
        with self._session() as session:
            deadline = time.monotonic() + GONE_S
            while left := self._ephemeral(session):
                assert time.monotonic() < deadline, self.story(f"these nodes are left: {left}")
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

    def _session(self) -> Session:
        hosts, secret = (self.environment[f"EDL_{name}"] for name in ("ZOOKEEPER", "SECRET"))
        return Session(hosts, session_timeout_s=10.0, access=Access(self.name, secret))


@contextmanager
def ordeal(
    directory: Path,
    zookeeper: str,
    *,
    np: int,
    max_np: int,
    min_np: int = 1,
    faults: Sequence[Sequence[Fault]] = (),
    environment: dict[str, str] | None = None,
    **settings: Any,
) -> Iterator[Ordeal]:
    """A job that runs under ``faults``; killed at the end of the block if it still does.

    ``settings``: fields of :class:`Ordeal`.
    """
    job = Ordeal(directory, zookeeper)
    for name, value in settings.items():
        setattr(job, name, value)
    job.environment |= environment or {}
    try:
        job.begin(faults, np, min_np, max_np)
        yield job
    finally:
        with contextlib.suppress(OSError):
            job.hurry()
        job.close()
