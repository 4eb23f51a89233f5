"""A learning rate is set right before each update, by the samples of the job."""

from __future__ import annotations

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lr_job import Job, elastic, elastic_sgd
from torch.optim import lr_scheduler as lr

from edl.errors import UsageError
from edl.policy.file import LearningRate, PolicyFile
from edl.schedules import Constant, Linear, Scaling
from edl.testing.counting import known_noise
from edl.torch import lr_schedules as lr_schedule
from edl.torch import lr_schedules as schedulers
from edl.torch.lr_schedules import STAYS, InSamples, LRSchedule, Schedulers, in_samples
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive

LINEAR = Linear(peak_lr=1.0, total=100)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    found = Job()
    monkeypatch.setattr(lr_schedule, "current_worker", lambda: SimpleNamespace(loader=found))
    return found


def test_it_is_that_of_the_samples_whatever_the_batches(job: Job) -> None:
    sgd = elastic_sgd(2)
    scheduler = LRSchedule(sgd, LINEAR)
    assert scheduler.get_last_lr() == [1.0, 1.0]
    for batch, rate in ((10, 0.9), (40, 0.5), (5, 0.45)):
        assert job.train(sgd, batch) == pytest.approx([rate, rate])
        scheduler.step()  # as with PyTorch's own
        assert scheduler.get_last_lr() == pytest.approx([rate, rate])


def test_each_group_may_have_its_own(job: Job) -> None:
    sgd = elastic_sgd(2, torch.tensor(9.0))
    LRSchedule(sgd, [LINEAR, Constant(peak_lr=0.25)])
    rates = sgd.param_groups[0]["lr"]
    assert job.train(sgd, 50) == [0.5, 0.25]
    assert sgd.param_groups[0]["lr"] is rates  # a tensor that a compiled step has seen


def test_a_newcomer_and_a_resumed_job_begin_where_the_job_is(job: Job) -> None:
    job.trained = 60
    sgd = elastic_sgd()
    scheduler = LRSchedule(sgd, LINEAR)
    assert scheduler.get_last_lr() == [0.4]
    follows = Schedulers()
    follows.add(sgd)
    (state,) = follows.states(())
    job.train(sgd, 10)
    follows.load([state], ())
    assert job.train(sgd, 10) == pytest.approx([0.2])


def test_it_follows_the_global_batch_over_some_updates(job: Job) -> None:
    sgd = elastic_sgd()
    LRSchedule(sgd, Constant(peak_lr=1.0), Scaling(batch=20, ramp=4))
    job.batches = ((0, 40),)
    assert [job.train(sgd, 10)[0] for _ in range(2)] == [2.0, 2.0]
    job.batches = ((0, 40), (2, 80))
    assert [job.train(sgd, 10)[0] for _ in range(6)] == [2.0, 2.5, 3.0, 3.5, 4.0, 4.0]


def test_one_of_pytorchs_counts_samples_as_steps(job: Job) -> None:
    sgd, plain = elastic_sgd(rate=1.0), elastic_sgd(rate=1.0)
    scheduler = in_samples(lr.StepLR(sgd, step_size=2, gamma=0.5), batch=20)
    theirs = lr.StepLR(plain, step_size=2, gamma=0.5)
    expected = []
    for _ in range(6):
        plain.step()
        expected.append(theirs.get_last_lr()[0])
        theirs.step()
    assert expected == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    ours = []
    for batch in (20, 10, 10, 20, 20, 5, 5, 5, 5, 20):
        before = job.trained
        ours.append((before // 20, job.train(sgd, batch)[0]))
        scheduler.step()
    assert all(rate == expected[step] for step, rate in ours), ours
    assert {step for step, _ in ours} == {*range(6)}
    assert scheduler.get_last_lr() == theirs.get_last_lr() == [0.125]
    other = in_samples(lr.StepLR(elastic_sgd(rate=1.0), step_size=2, gamma=0.5), batch=20)
    other.load_state_dict(scheduler.state_dict())
    assert other.scheduler.last_epoch == 6


def test_a_scheduler_that_has_made_steps_goes_on_from_there(job: Job) -> None:
    sgd = elastic_sgd(rate=1.0)
    scheduler = lr.StepLR(sgd, step_size=2, gamma=0.5)
    sgd.step()
    scheduler.step()
    in_samples(scheduler, batch=20)
    assert [job.train(sgd, 20)[0] for _ in range(4)] == [1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("is_chain", [False, True])
def test_a_state_may_be_loaded_before_or_after_it_is_wrapped(is_chain: bool, job: Job) -> None:
    def made(sgd: torch.optim.SGD) -> lr.LRScheduler:
        half = lr.StepLR(sgd, step_size=2, gamma=0.5)
        return lr.ChainedScheduler([half]) if is_chain else half

    old = elastic_sgd(rate=1.0)
    scheduler = in_samples(made(old), batch=20)
    for _ in range(4):
        job.train(old, 20)
    state = scheduler.state_dict()
    before, after = elastic_sgd(rate=1.0), elastic_sgd(rate=1.0)
    loaded, wrapped = made(before), in_samples(made(after), batch=20)
    loaded.load_state_dict(state)
    in_samples(loaded, batch=20)
    wrapped.load_state_dict(state)
    for sgd in (before, after):
        sgd.param_groups[0]["lr"] = old.param_groups[0]["lr"]
        job.trained = 0
        assert [job.train(sgd, 20)[0] for _ in range(4)] == [0.5, 0.25, 0.25, 0.125]


def test_a_state_that_is_put_back_in_the_loop_is_gone_on_from(job: Job) -> None:
    sgd = elastic_sgd(rate=1.0)
    scheduler = in_samples(lr.LambdaLR(sgd, lambda step: 1.0 - step / 16), batch=20)
    rates = [job.train(sgd, 20)[0] for _ in range(3)]
    state = copy.deepcopy(scheduler.state_dict())
    scheduler.load_state_dict(state)
    rates += [job.train(sgd, 20)[0] for _ in range(3)]
    assert rates == [1.0 - step / 16 for step in range(6)]
    scheduler.load_state_dict(state)
    assert job.train(sgd, 20)[0] == 1.0 - 3 / 16


def test_the_state_of_an_earlier_edl_has_a_dict_in_place_of_a_counter(job: Job) -> None:
    scheduler = in_samples(lr.MultiStepLR(elastic_sgd(rate=1.0), [2, 4, 4]), batch=20)
    state = scheduler.state_dict()
    scheduler.load_state_dict({**state, "milestones": {**state["milestones"]}})
    assert scheduler.scheduler.milestones == Counter([2, 4, 4])  # type: ignore[attr-defined]
    assert type(scheduler.scheduler.milestones) is Counter  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_of_old_edl", [False, True])
def test_a_tracked_one_goes_on_where_the_job_is(is_of_old_edl: bool, job: Job) -> None:
    """The state of the job has the same samples, which the steps are of already."""

    def script() -> tuple[torch.optim.SGD, dict[str, InSamples]]:
        sgd = elastic_sgd(rate=1.0)
        schedule = lr.LambdaLR(sgd, lambda step: 1.0 - step / 16)
        return sgd, {"schedule": in_samples(schedule, batch=20)}

    (sgd, mine), (newcomer, theirs) = script(), script()
    for _ in range(3):
        job.train(sgd, 20)
    state = copy.deepcopy(mine["schedule"].state_dict())
    if is_of_old_edl:
        del state["edl_steps_before"]
    replica = TorchReplica(torch.nn.Module(), newcomer)
    replica.track(theirs)
    replica.load_things({"schedule": state}, Receive.ALL)
    assert job.train(newcomer, 20) == [1.0 - 3 / 16]


@pytest.mark.parametrize("is_of_old_edl", [False, True])
def test_steps_of_a_file_of_the_script_are_not_counted_twice(is_of_old_edl: bool, job: Job) -> None:
    """The script loads it on a newcomer, and in a resumed job, before the job's state comes."""

    def script(state: dict[str, Any] | None) -> tuple[torch.optim.SGD, Schedulers]:
        sgd, follows = elastic_sgd(rate=1.0), Schedulers()
        follows.add(sgd)
        scheduler = lr.LambdaLR(sgd, lambda step: 1.0 - step / 16)
        if state is not None:
            scheduler.load_state_dict(state)
        wrapped.append(in_samples(scheduler, batch=20))
        return sgd, follows

    wrapped: list[InSamples] = []
    sgd, follows = script(None)
    for _ in range(3):
        job.train(sgd, 20)
    states = copy.deepcopy(follows.states(()))
    if is_of_old_edl:
        del states[0]["steps_before"]
    newcomer, theirs = script(None if is_of_old_edl else wrapped[0].state_dict())
    newcomer.load_state_dict(sgd.state_dict())
    assert theirs.load(states, ()) == []
    assert job.train(newcomer, 20) == [1.0 - 3 / 16]


def test_a_chain_of_pytorchs_counts_them_too(job: Job) -> None:
    """It has no count of its own. Two that halve, every step and every second one."""
    sgd = elastic_sgd(rate=1.0)
    parts = [lr.StepLR(sgd, step_size=size, gamma=0.5) for size in (1, 2)]
    chain = in_samples(lr.ChainedScheduler(parts), batch=20)
    rates = [job.train(sgd, 10)[0] for _ in range(6)]
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.125, 0.125]
    assert chain.get_last_lr() == [0.125]


def test_samples_left_over_at_the_end_of_an_epoch_count_as_a_step() -> None:
    """As in a plain loop: 97 samples are 12 batches of 8 and one of a single sample."""
    scheduler = InSamples(lr.StepLR(elastic_sgd(rate=1.0), 1), batch=8, epoch=97)
    assert [scheduler.steps_of(samples) for samples in (0, 7, 8, 96, 97, 105, 194)] == [
        *(0, 0, 1, 12, 13, 14, 26)
    ]
    assert InSamples(lr.StepLR(elastic_sgd(rate=1.0), 1), batch=8).steps_of(194) == 24


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda sgd: LRSchedule(torch.optim.SGD(sgd.param_groups, lr=1.0), LINEAR), "before it"),
        (lambda sgd: LRSchedule(sgd, [LINEAR]), "or 2, one for each parameter group"),
        (lambda sgd: LRSchedule(sgd, 0.1), "needs a schedule of edl.schedules"),
        *(
            (
                lambda sgd, kind=kind: LRSchedule(
                    elastic(kind([torch.zeros(1)])), LINEAR, Scaling(batch=8)
                ),
                f"the learning rate of {kind.__name__} is no factor of its updates",
            )
            for kind in (torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor)
        ),
        (lambda sgd: in_samples(lr.ReduceLROnPlateau(sgd), 8), "ReduceLROnPlateau does not"),
        (lambda sgd: in_samples(lr.StepLR(sgd, 1), 0), "batch is 0"),
        (lambda sgd: in_samples(lr.StepLR(sgd, 1), True), "batch is True"),
        (
            lambda sgd: in_samples(lr.StepLR(torch.optim.SGD(sgd.param_groups, lr=1.0), 1), 8),
            "edl.in_samples needs the optimizer of the job",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence(make: Any, words: str, job: Job) -> None:
    with pytest.raises(UsageError, match=words):
        make(elastic_sgd(2))


def test_by_adascale_it_follows_what_is_known_of_the_noise(job: Job) -> None:
    """With a noise scale of 100, 400 samples are worth 1.6 updates with 100 (test_noise_scale)."""
    sgd = elastic_sgd()
    LRSchedule(sgd, Constant(peak_lr=0.5), Scaling(batch=100, rule="adascale", ramp=2))
    assert job.progress.noise.asked
    job.batches = ((0, 400),)
    assert job.train(sgd, 400) == [0.5], "nothing is known"
    job.known = known_noise(100.0, 1.0, 100, 1)
    ramp = [job.train(sgd, 400)[0] for _ in range(4)]
    assert ramp == pytest.approx([0.5, 0.5 * 1.3, 0.5 * 1.6, 0.5 * 1.6]), "in no jump"
    job.batches = ((0, 400), (5, 100))
    rates = [job.train(sgd, 100)[0] for _ in range(3)]
    assert rates == pytest.approx([0.5 * 1.6, 0.5 * 1.3, 0.5])


def test_horovods_optimizer_counts_no_samples(job: Job) -> None:
    sgd = elastic_sgd()
    sgd._allreduce_delay = {}  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="LRSchedule counts the samples of edl's own loader"):
        LRSchedule(sgd, LINEAR)


# --- the policy of the job


def follows(job: Job, monkeypatch: pytest.MonkeyPatch, table: LearningRate | None) -> None:
    job.progress.optimizers = 1
    worker = SimpleNamespace(loader=job, follows=lambda: PolicyFile("", learning_rate=table))
    monkeypatch.setattr(lr_schedule, "current_worker", lambda: worker)


def test_an_optimizer_follows_the_policy_of_its_job(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    sgd = elastic_sgd(2)
    lr_schedule.follow_policy(sgd)
    lr_schedule.check_schedulers()
    assert job.train(sgd, 10) == [pytest.approx(0.9)] * 2


def test_a_scaling_alone_is_of_the_rates_that_the_script_gives(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the batch that a rate of 3 was chosen for."""
    follows(job, monkeypatch, LearningRate(None, Scaling(batch=8, ramp=0)))
    sgd = elastic_sgd(rate=3.0)
    lr_schedule.follow_policy(sgd)
    job.batches = ((0, 16),)
    assert job.train(sgd, 16) == [6.0]


def test_without_a_table_nothing_follows(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    follows(job, monkeypatch, None)
    sgd = elastic_sgd()
    lr_schedule.follow_policy(sgd)
    assert job.train(sgd, 10) == [9.0]


BOTH = "policy has a .learning_rate., and the script a StepLR for the same optimizer"


def test_the_policy_and_an_earlier_scheduler_of_the_script(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    sgd = elastic_sgd()
    own = lr.StepLR(sgd, 10)
    with pytest.raises(UsageError, match=BOTH):
        lr_schedule.follow_policy(own.optimizer)


def test_the_policy_and_a_later_scheduler_of_the_script(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    sgd = elastic_sgd()
    lr_schedule.follow_policy(sgd)
    own = lr.StepLR(sgd, 10)
    with pytest.raises(UsageError, match=BOTH):
        lr_schedule.check_schedulers()
    del own


def test_groups_keep_the_ratios_of_their_rates_to_the_first(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head with 2, a backbone with 0.5; later one more, with 1."""
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    sgd = elastic_sgd(2)
    sgd.param_groups[0]["lr"], sgd.param_groups[1]["lr"] = 2.0, 0.5
    lr_schedule.follow_policy(sgd)
    assert job.train(sgd, 10) == pytest.approx([0.9, 0.225])
    sgd.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0})
    assert job.train(sgd, 10) == pytest.approx([0.8, 0.2, 0.4])


def test_groups_keep_no_ratio_to_a_first_rate_of_0(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    sgd = elastic_sgd(2)
    sgd.param_groups[0]["lr"] = 0.0
    with pytest.raises(UsageError, match=r"first parameter group .* is 0 and that of group 1 is 9"):
        lr_schedule.follow_policy(sgd)


def test_groups_without_rates_have_that_of_the_policy_alike(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    sgd = elastic_sgd(2, rate=0.0)
    lr_schedule.follow_policy(sgd)
    assert job.train(sgd, 10) == [pytest.approx(0.9)] * 2
    sgd.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0})
    with pytest.raises(UsageError, match="and that of group 2 is 1"):
        job.train(sgd, 10)


def test_one_schedule_of_a_policy_is_not_for_several_optimizers(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows(job, monkeypatch, LearningRate(LINEAR, None))
    job.progress.optimizers = 2
    with pytest.raises(UsageError, match=r"one schedule .* and the script several"):
        lr_schedule.follow_policy(elastic_sgd())


def test_a_group_that_is_added_has_the_schedule_of_all_or_is_refused(job: Job) -> None:
    sgd, other = elastic_sgd(), elastic_sgd()
    LRSchedule(sgd, LINEAR)
    LRSchedule(other, [LINEAR])
    for each in (sgd, other):
        each.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0})
    assert job.train(sgd, 10) == [pytest.approx(0.9)] * 2
    with pytest.raises(UsageError, match=r"has 2 parameter groups by now, and .* 1 schedules"):
        job.train(other, 10)


@pytest.mark.parametrize("has_markers", [False, True])
def test_a_group_that_the_job_has_added_comes_to_newcomers(has_markers: bool, job: Job) -> None:
    """They make the scheduler before that line. ``has_markers``: of a checkpoint of old edl."""

    def added(sgd: torch.optim.SGD) -> None:
        sgd.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0})

    sgd, newcomer = elastic_sgd(), elastic_sgd()
    schedules = [LRSchedule(each, LINEAR) for each in (sgd, newcomer)]
    added(sgd)
    assert job.train(sgd, 10) == [pytest.approx(0.9)] * 2
    mine, theirs = Schedulers(), Schedulers()
    mine.add(sgd)
    theirs.add(newcomer)
    states = copy.deepcopy(mine.states(()))
    if has_markers:
        states[0]["state"]["schedules"] = (STAYS, STAYS)
    added(newcomer)  # by the job's state
    theirs.load(states, ())
    assert job.train(newcomer, 10) == [pytest.approx(0.8)] * 2
    assert schedules[1].schedules == (LINEAR, LINEAR)


def test_a_group_that_is_removed_is_refused(job: Job) -> None:
    sgd = elastic_sgd(2)
    LRSchedule(sgd, LINEAR)
    del sgd.param_groups[1]
    with pytest.raises(UsageError, match=r"1 parameter groups by now, and .* for 2; freeze"):
        job.train(sgd, 10)


@pytest.mark.parametrize(("now", "message"), [(1, "freeze"), (3, "all its groups before edl.LR")])
def test_a_tuner_has_a_rate_for_each_group(now: int, message: str) -> None:
    sgd = elastic_sgd(now)
    with pytest.raises(UsageError, match=message):
        lr_schedule.check_groups(sgd, 2, "edl.LRTuner")


def test_what_counts_samples_is_not_named_for_counting_steps(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "_made", [])  # without those of other tests
    sgd, other = elastic_sgd(), elastic_sgd(rate=1.0)
    scheduler, converted = LRSchedule(sgd, LINEAR), in_samples(lr.StepLR(other, 2), batch=4)
    for _ in range(6):
        job.train(sgd, 4)
        job.train(other, 4)
        scheduler.step()
    assert converted.scheduler.last_epoch > 2
    schedulers.warn_of_a_changed_batch(8, 12, epochs=1)
    assert not caplog.messages
