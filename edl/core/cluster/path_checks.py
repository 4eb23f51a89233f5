"""Know which hosts have the files that a job needs, before it gets a slot there.

The leader writes paths into a host's assignment (:mod:`edl.core.cluster.path_questions`), and the
host says in its report which of them are there. A job gets no new slots on a host that lacks one of
its paths, or has not said yet whether it is there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edl.core.cluster.records import HostOffer, HostReport
from edl.core.plural import verb
from edl.errors import some

PATHS_NAMED = 2  # in one sentence
MOST_BYTES = 200_000  # of all paths of a question; ZooKeeper holds 1 MB in a node
_OF_A_CHARACTER = 12  # at most, in JSON: two escapes


class HostRecords(Protocol):
    """The records of a host that are read here."""

    @property
    def name(self) -> str:
        """The name of the host."""

    @property
    def offer(self) -> HostOffer | None:
        """What it offers; None: it offers nothing now."""

    @property
    def report(self) -> HostReport | None:
        """What it reports; None: it never has."""


class JobFiles(Protocol):
    """The part of a job's manifest that is read here."""

    @property
    def required_paths(self) -> Mapping[str, str]:
        """Path -> what it is to the job, like "the job's data /data/images"."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that a host must have."""


@dataclass(frozen=True)
class PathCheck:
    """What the hosts that offer slots have said of the paths that a job needs."""

    # host -> the first path that it does not have, as the job names it
    lacking: Mapping[str, str] = field(default_factory=dict)
    # host -> the first path that it has not looked for yet
    unknown: Mapping[str, str] = field(default_factory=dict)

    def allows(self, host: str) -> bool:
        """Return whether `host` is not known to lack anything, and has said so."""
        return host not in self.lacking and host not in self.unknown

    @property
    def lacks(self) -> str:
        """A clause that says which hosts lack what; empty if none does."""
        return _clause(self.lacking, "lacks", "lack", "")

    @property
    def told(self) -> str:
        """A clause that says which hosts lack what, or have not looked for it yet."""
        unknown = _clause(self.unknown, "has", "have", "not looked yet for ")
        return "; ".join(one for one in (self.lacks, unknown) if one)


NOTHING_NEEDED = PathCheck()


class PathChecks:
    """The answers of all hosts of a cluster about paths."""

    def __init__(self, hosts: Sequence[HostRecords]) -> None:
        self._hosts = [host for host in hosts if host.offer is not None]
        self._kept: dict[tuple[object, object], PathCheck] = {}

    def of(self, job: JobFiles) -> PathCheck:
        """Return what the hosts have said of the paths of `job`; many jobs have the same."""
        if not job.required_paths:
            return NOTHING_NEEDED
        key = tuple(job.required_paths), tuple(job.labels.items())
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._look(job)
        return found

    def _look(self, job: JobFiles) -> PathCheck:
        """Return what the hosts have said of the paths of `job`."""
        lacking: dict[str, str] = {}
        unknown: dict[str, str] = {}
        for host in self._hosts:
            labels = host.offer.labels if host.offer is not None else {}
            if any(labels.get(key) != value for key, value in job.labels.items()):
                continue
            said = host.report.paths if host.report is not None else {}
            for path, what in job.required_paths.items():
                if said.get(path) is False:
                    lacking.setdefault(host.name, what)
                elif path not in said:
                    unknown.setdefault(host.name, what)
        return PathCheck(lacking, {h: what for h, what in unknown.items() if h not in lacking})


def path_bytes(paths: Iterable[str]) -> int:
    """Return how many bytes `paths` have in the record with which a host is asked for them."""
    return sum(len(json.dumps(path)) + 1 for path in paths)  # with a comma


def too_long_for_a_question(paths: Collection[str]) -> str:
    """Return why no host can be asked for all `paths`, as a clause; empty: it can."""
    if _OF_A_CHARACTER * sum(map(len, paths)) + 3 * len(paths) <= MOST_BYTES:
        return ""
    size = path_bytes(paths)
    if size <= MOST_BYTES:
        return ""
    return f"its cwd, venv and data have {size} bytes, and hosts are asked for {MOST_BYTES} at most"


def _clause(found: Mapping[str, str], one: str, many: str, between: str) -> str:
    """Return a clause that names the hosts of `found` with what is wrong there."""
    hosts: dict[str, list[str]] = {}
    for host in sorted(found):
        hosts.setdefault(found[host], []).append(host)
    clauses = [
        f"{some(names)} {verb(len(names), one, many)} {between}{what}"
        for what, names in list(hosts.items())[:PATHS_NAMED]
    ]
    return "; ".join(clauses)
