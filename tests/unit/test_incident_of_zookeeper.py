"""What the page of a job says while ZooKeeper does not answer; and its cause, afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shown_job import CREATED, event
from test_incidents import status_of

from edl.dashboard.view.incidents import IncidentLog, IncidentView, incident_views
from edl.dashboard.view.outage import ServerProbe, WorkerReports, outage_cause, outage_incident
from edl.dashboard.view.page import JobTrace
from edl.events import ZookeeperBackDetails


class TestZookeeper:
    @staticmethod
    def lasts(asked: WorkerReports, trouble: str = "") -> IncidentView:
        cause = outage_cause(trouble, {"a:2181": ServerProbe.REFUSED})
        return outage_incident(cause, 7.2, CREATED + 60, 640, asked)

    def test_that_is_away_now(self) -> None:
        one = self.lasts(WorkerReports(2, 1, 652, (1,), grew=True))
        assert (one.tone, one.until_s, one.step) == ("bad", None, 640)
        assert one.at_s == pytest.approx(CREATED + 52.8)
        assert "has not answered this page for 7 s: no worker can join or leave." in one.what
        assert "If one is lost now, the others wait for ZooKeeper" in one.what
        assert "`edl zookeeper start`" in one.advice
        assert "`edl zookeeper status`" in one.advice
        assert one.since == (
            "Training goes on: asked directly, 1 of 2 workers says that step 652 is complete, "
            "12 after the last that ZooKeeper knows: the header still shows step 640."
        )
        assert "No server ran at a:2181: the machine refused connections" in one.why

    def test_that_is_on_this_machine_has_its_own_cause(self) -> None:
        trouble = "The disk that has its data, /x, is full: free space there."
        one = self.lasts(WorkerReports(2, 1, 652), trouble)
        assert one.why == "The disk that has the server's data, /x, was full."
        assert one.advice == "Free space there."
        stopped = outage_cause("Its process is stopped: `kill -CONT 5` wakes it.", {})
        assert stopped.advice == "`kill -CONT 5` wakes it."
        assert stopped.why == "The server's process was stopped."

    def test_that_does_not_answer_is_explained_by_what_its_servers_do(self) -> None:
        probes = {"a:1": ServerProbe.SILENT, "b:1": ServerProbe.OPEN, "c:1": ServerProbe.SILENT}
        why = outage_cause("", probes).why
        assert "Nothing answered at a:1 and c:1: the machine was down or frozen" in why
        assert "A server at b:1 took connections, but did not answer" in why
        assert outage_cause("", {}).why.startswith("The ZooKeeper server was stopped")

    @pytest.mark.parametrize(
        ("way", "wanted", "unwanted"),
        [
            (ServerProbe.REFUSED, "Start the server at a:1 again", ("network", "disk", "ping")),
            (ServerProbe.SILENT, "`ping` its host; start it again or mend the network", ("disk",)),
            (ServerProbe.OPEN, "its process is stopped, how busy its host is", ("network",)),
        ],
    )
    def test_the_advice_fits_what_its_servers_do(
        self, way: ServerProbe, wanted: str, unwanted: tuple[str, ...]
    ) -> None:
        advice = outage_cause("", {"a:1": way}).advice
        assert wanted in advice
        assert not any(word in advice for word in unwanted), advice
        assert "`edl zookeeper status`" in advice
        assert "goes on by itself" in advice

    def test_servers_that_differ_have_an_advice_each(self) -> None:
        probes = {"a:1": ServerProbe.REFUSED, "b:1": ServerProbe.SILENT, "c:1": ServerProbe.REFUSED}
        advice = outage_cause("", probes).advice
        assert advice.startswith("Start the server at a:1 and c:1 again")
        assert "Of b:1: `ping` its host" in advice
        assert "give it disk space" in outage_cause("", {}).advice, "nothing is known"

    def test_a_cause_that_the_page_has_seen_is_said_afterwards(self) -> None:
        why = outage_cause("", {"a:1": ServerProbe.REFUSED}).why
        log = replace(IncidentLog(), outage_why=why, outage_s=CREATED + 58)
        back = event(60, ZookeeperBackDetails(12.34, 640), 1, 700)
        (one,) = incident_views(log.with_event(back), status_of({}), 0.0)
        assert one.why == (
            "No server ran at a:1: the machine refused connections, so the process had ended."
        )
        later = replace(back, time=CREATED + 900)
        (one,) = incident_views(log.with_event(later), status_of({}), 0.0)
        assert one.why.startswith("The ZooKeeper server was stopped")

    def test_the_cause_that_was_seen_first_counts(self) -> None:
        """A server that is started again takes connections before it answers."""
        trace = JobTrace().with_outage("It was killed.", 10.0, 10.5)
        trace = trace.with_outage("It was overloaded.", 10.0, 17.0)
        assert (trace.incidents.outage_why, trace.incidents.outage_s) == ("It was killed.", 17.0)
        trace = trace.with_outage("It was frozen.", 60.0, 61.0)
        assert trace.incidents.outage_why == "It was frozen."

    def test_whether_workers_train_then_is_said_only_if_they_say_so(self) -> None:
        asked = WorkerReports(2, 2, 652)
        assert self.lasts(asked).since == (
            "Asked directly, 2 of 2 workers say that step 652 is the newest complete one, 12 after "
            "the last that ZooKeeper knows."
        )
        grew = WorkerReports(2, 2, 653).after(asked, 1.0)
        assert self.lasts(grew).since.startswith("Training goes on: asked directly,")
        assert "does not know whether they train" in self.lasts(WorkerReports(2)).since
        assert self.lasts(WorkerReports()).since == "There is no ring of workers."

    def test_only_workers_of_the_job_are_believed(self) -> None:
        reports = {
            0: {"run": "r", "step": 5},
            2: {"run": "other", "step": 9},
            3: {},
            4: {"run": "r"},
        }
        assert WorkerReports.of("r", reports) == WorkerReports(4, 1, 5, (2, 3, 4))

    def test_a_job_that_stands_still_is_not_said_to_train(self) -> None:
        asked = WorkerReports(2, 2, 652).after(WorkerReports(2, 2, 650), 1.0)
        for _ in range(12):
            asked = WorkerReports(2, 1, 652, (1,)).after(asked, 1.0)
        assert self.lasts(asked).since == (
            "Asked directly, 1 of 2 workers says that step 652 is the newest complete one, 12 "
            "after the last that ZooKeeper knows; no step has completed for 12 s. w1 does not "
            "answer: the others wait until ZooKeeper answers, and then go on without the lost."
        )
        assert "goes on" in self.lasts(WorkerReports(2, 1, 653).after(asked, 1.0)).since
