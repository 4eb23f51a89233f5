"""A real Prometheus watches a real job in which a worker is killed and one joins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from prometheus import Prometheus
from scenario import Scenario, scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class Watched(Scenario):
    """A job whose agent serves metrics at any port."""

    options = ("--metrics-port", "0")
    samples = 960


@pytest.mark.long  # `unit/test_metrics.py` and `test_metrics_page.py` have the parts of it
def test_prometheus_sees_what_status_and_events_say(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=Watched) as job:
        job.wait_for_step(2)
        with job.store() as store:
            [host] = store.snapshot().hosts
        targets = f"http://{host.address}:{host.metrics_port}/targets"
        with Prometheus(tmp_path / "prometheus", targets) as prometheus:
            prometheus.wait_for("sum(up)", 3)  # the agent and two workers
            prometheus.wait_for(f'max(edl_job_info{{edl_job="{job.name}"}})', 1)
            prometheus.wait_for("sum(edl_leader)", 1)
            assert {labels["worker"] for labels, _ in prometheus.query("edl_steps_total")} == {
                "w0",
                "w1",
            }

            job.kill(job.plain())
            prometheus.wait_for('max(edl_membership_changes_total{kind="crash"})', 1)
            job.wait_for_size(2)
            prometheus.wait_for("max(edl_ring_workers)", 2)
            job.scale(3)
            job.wait_for_size(3)
            prometheus.wait_for("max(edl_ring_workers)", 3)
            prometheus.wait_for('max(edl_workers{stage="active"})', 3)
            # The one that was killed is in the list no more; its replacement and the newcomer are.
            prometheus.wait_for("sum(up)", 4)
            before = job.status()["step"]
            job.wait_for_step(before + 3)
            prometheus.wait_for(f"max(edl_step) > bool {before}", 1)
            newcomers = 'max(edl_steps_total{worker!~"w0|w1"})'
            prometheus.wait_for(f"{newcomers} > bool 0", 1)
            [(_, trained)] = prometheus.query(newcomers)
            assert trained < job.status()["step"]  # not the steps from before they came

            stalls = [
                max(parts["stall_s"] for parts in workers if parts["role"] == "old")
                for switch in job.events("switch")
                if (workers := [*switch["workers"].values()])
                and any(parts["role"] == "old" for parts in workers)
            ]
            prometheus.wait_for("sum(edl_stall_seconds_count)", len(stalls))
            [(_, total)] = prometheus.query("sum(edl_stall_seconds_sum)")
            assert total == pytest.approx(sum(stalls))
            for kind, count in Counter(one["kind"] for one in job.events()).items():
                prometheus.wait_for(f'max(edl_events_total{{kind="{kind}"}})', count)
            healths = {rule["health"] for rule in rules_of(prometheus)}
            assert healths <= {"ok", "unknown"}
        job.prove()


def rules_of(prometheus: Prometheus) -> list[dict[str, str]]:
    """Return all rules that Prometheus evaluates."""
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
