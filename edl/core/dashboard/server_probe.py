"""Say why ZooKeeper does not answer, by what its servers do with a new connection."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from edl.core.dashboard import incident_causes as causes
from edl.core.dashboard.full_disk import listed
from edl.core.dashboard.tense import tenses


class ServerProbe(StrEnum):
    """The ways in which a server may treat a new TCP connection: refuse, ignore or take it."""

    REFUSED = "refused"  # its machine answers that no process listens at the port
    SILENT = "silent"  # no answer comes, or there is no route to the machine
    OPEN = "open"  # the machine takes the connection, as it does for a process that is stopped, too


def outage_cause(trouble: str, probes: Mapping[str, ServerProbe]) -> causes.Cause:
    """Return why ZooKeeper does not answer, in both tenses, and what to do."""
    cause, _, advice = trouble.partition(": ")
    if advice:
        why = f"{cause}.".replace("Its ", "The server's ", 1).replace(" its ", " the server's ", 1)
        for verb, then in (("is", "was"), ("has ended", "had ended")):
            why = why.replace(f" {verb}", f" {tenses(verb, then)}", 1)
        return causes.Cause(why, f"{advice[:1].upper()}{advice[1:]}")
    why, todo = (_said(words, probes) for words in (_WORDS, _ADVICE))
    return causes.Cause(
        why or causes.OF_ZOOKEEPER.why,
        f"{todo or causes.OF_ZOOKEEPER_AWAY} {causes.WHILE_ZOOKEEPER_IS_AWAY}",
    )


def _said(words: Mapping[ServerProbe, str], probes: Mapping[str, ServerProbe]) -> str:
    """Return a sentence for each way in which some servers treat a connection, with their names."""
    return " ".join(
        sentence.format(listed(names))
        for way, sentence in words.items()
        if (names := [server for server, one in probes.items() if one is way])
    )


_IS, _DOES_NOT = tenses("is", "was"), tenses("does not", "did not")

_WORDS = {
    ServerProbe.REFUSED: f"No server {tenses('runs', 'ran')} at {{0}}: the machine "
    f"{tenses('refuses', 'refused')} connections, so the process {tenses('has', 'had')} ended.",
    ServerProbe.SILENT: f"Nothing {tenses('answers', 'answered')} at {{0}}: the machine {_IS} down "
    f"or frozen, or the network to it {_IS} cut.",
    ServerProbe.OPEN: f"A server at {{0}} {tenses('takes', 'took')} connections, but "
    f"{_DOES_NOT} answer: it {_IS} stopped or overloaded, its disk {_IS} full, or it {_DOES_NOT} "
    "reach most of the other servers.",
}

_ADVICE = {
    ServerProbe.REFUSED: "Start the server at {0} again, and read in its log why it has ended.",
    ServerProbe.SILENT: "Of {0}: `ping` its host; start it again or mend the network to it.",
    ServerProbe.OPEN: "Of {0}: look whether its process is stopped, how busy its host is, whether "
    "its disk is full (`df -h`), and whether it reaches the other servers.",
}
