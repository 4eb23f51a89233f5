"""A job finds its own size by a rule, while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from horovodrun import WORKER, HorovodrunScenario
from paths import SCRIPTS
from scenario import Scenario, scenario

from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RULE = """
[size]
rule = "throughput"
threshold = 0.4
every_steps = 6
staying_steps = 8
"""
SCALES = Throttle(0.2, 10**6)  # each step takes as long with any number of workers
SCALES_NOT = Throttle(0.05, 10**6, 0.05, each_s=0.05)


GOODPUT = """
[size]
rule = "goodput"
every = "2s"
"""


def options(directory: Path, text: str = RULE) -> dict[str, Any]:
    file = directory / "policy.toml"
    file.write_text(text)
    return {"options": ["--policy", str(file)], "samples": 1920}


def reasons(job: Scenario) -> list[str]:
    return [event["reason"] for event in job.events("policy")]


@pytest.mark.parametrize(
    ("script", "most"),
    [
        ("counting.py", 2),
        pytest.param("counting.py", 3, marks=pytest.mark.long),
        pytest.param("tf_counting.py", 3, marks=pytest.mark.long),
        pytest.param("tf_counting.py fit", 3, marks=pytest.mark.long),
    ],
)
def test_one_that_scales_grows_and_a_killed_leader_changes_nothing(
    script: str, most: int, tmp_path: Path, zk_hosts: str
) -> None:
    script, _, mode = script.partition(" ")
    settings = {"script": SCRIPTS / script, "throttled": SCALES, **options(tmp_path)}
    settings |= {"more": ["--mode", mode]} if mode else {}
    settings |= {"samples": 1120} if most == 2 else {}  # it needs fewer steps: one size less
    with scenario(tmp_path, zk_hosts, np=1, max_np=most, **settings) as job:
        job.wait_for_size(2)
        now = job.wait_for_progress(3)
        assert 0 < now["left"] <= job.epochs * job.samples
        job.process(job.leader()).kill()
        job.wait_for_size(most)
        job.wait(lambda now: now["policy"].startswith(f"stays at {most}"), "rest")
        said = reasons(job)
        assert said[0] == "policy: tries 2: only 1 has been measured"
        if most == 3:
            assert any(one.startswith("policy: tries 3: a 2nd worker brings ") for one in said)
        nth = {2: "2nd", 3: "3rd"}[most]
        last = f"policy: stays at {most}, the most there may be: a {nth} worker brings "
        job.until(lambda: reasons(job)[-1].startswith(last), "word of it in the event log")
        job.prove(workers=most)


UNDER_HOROVODRUN: dict[str, Any] = {"kind": HorovodrunScenario, "shield": WORKER}
EQUAL: dict[str, Any] = {"samples": 5400, "batch_size": 6}  # batches, as Horovod's sampler has them


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("counting.py", {}),
        ("tf_counting.py fit", {}),
        ("counting.py", UNDER_HOROVODRUN),
        ("hvd_counting.py", UNDER_HOROVODRUN | EQUAL),
    ],
)
def test_a_script_says_itself_how_many_workers_it_wants(
    script: str, more: dict[str, Any], tmp_path: Path, zk_hosts: str
) -> None:
    wish = tmp_path / "wish"
    script, _, mode = script.partition(" ")
    settings: dict[str, Any] = {"script": SCRIPTS / script, "samples": 4800, **more}
    settings["more"] = ["--wish", str(wish), *(["--mode", mode] if mode else [])]

    def wishes(change: int) -> None:
        new = tmp_path / "new"
        new.write_text(str(change))
        new.rename(wish)

    wishes(1)
    with scenario(tmp_path, zk_hosts, np=1, max_np=3, **settings) as job:
        job.wait_for_size(3)
        wishes(0)
        job.wait(lambda now: now["policy"].endswith("what 3 workers wish is 0"), "word of it")
        wishes(-1)
        job.wait_for_size(1)
        wishes(0)
        said = reasons(job)
        assert "policy: goes to 2: the sum of what 1 worker wishes is +1" in said
        assert job.edl("policy", "show").startswith("policy of edl.on_interval: on")
        job.prove(workers=1)


@pytest.mark.long
def test_one_that_does_not_scale_shrinks_and_people_may_say_otherwise(
    tmp_path: Path, zk_hosts: str
) -> None:
    settings = {"throttled": SCALES_NOT, **options(tmp_path)}
    with scenario(tmp_path, zk_hosts, np=3, max_np=3, **settings) as job:
        job.wait_for_step(3)
        job.until(lambda: reasons(job), "word of a smaller size")
        job.process(job.leader()).kill()  # while it shrinks
        job.wait(lambda now: now["policy"].startswith("stays at 1"), "rest")
        said = reasons(job)
        assert said[0] == "policy: tries 2: only 3 have been measured"
        last = "policy: stays at 1: a 2nd worker brings "
        job.until(lambda: reasons(job)[-1].startswith(last), "word of it in the event log")
        explained = job.edl("policy", "explain")
        assert "a 3rd worker brings" in explained
        job.scale(2)
        job.wait_for_size(2)
        held = job.wait(lambda now: "a person has asked" in now["policy"], "hold")
        assert held["policy"].startswith("stays at 2: a person has asked for 2 workers")
        before = held["generation"]
        job.process(job.leader()).kill()
        job.wait(lambda now: now["generation"] > before, "a repair")
        job.wait_for_size(2)
        job.wait_for_progress(20)
        held = job.wait(lambda now: "a person has asked" in now["policy"], "hold")
        assert held["world_size"] == 2
        job.edl("policy", "resume")
        job.wait_for_size(1)
        job.edl("policy", "off")
        job.wait(lambda now: not now["policy"], "end of the policy")
        job.prove(workers=1)


@pytest.mark.long
def test_a_model_finds_the_size_without_walking_there(tmp_path: Path, zk_hosts: str) -> None:
    settings = {"throttled": SCALES, **options(tmp_path, GOODPUT)}
    with scenario(tmp_path, zk_hosts, np=1, max_np=4, **settings) as job:
        job.wait_for_size(4)
        rest = job.wait(lambda now: now["policy"].startswith("stays at 4"), "rest")
        before = rest["generation"]
        said = reasons(job)
        assert said[0].startswith("policy: goes to 2: 2 would train +")
        assert any(one.startswith("policy: goes to 4: 4 would train +") for one in said)
        assert "model" in job.edl("policy", "explain")
        job.process(job.leader()).kill()
        job.wait(lambda now: now["generation"] > before, "a repair")
        job.wait_for_size(4)
        job.edl("policy", "off")  # at another pace another size may be better
        job.prove(workers=4)
