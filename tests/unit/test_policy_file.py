"""A policy's file: what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.policy.file import HOLD_S, LearningRate, check_change, check_sizes, parse_policy
from edl.policy.hill_climbing import Cost, Throughput, Votes
from edl.policy.stragglers import Stragglers
from edl.schedules import Knee, Scaling, Step
from edl.spec import Sizes
from edl.step.batching import Batching

BIG = 400 * "9"  # above all floats
SHORT = """
[size]
rule = "throughput"
threshold = 0.2
every_steps = 20
add = 2
"""


def size(*lines: str, rule: str = "throughput") -> str:
    return "\n".join(["[size]", f'rule = "{rule}"', *lines])


def test_a_short_file() -> None:
    policy = parse_policy(SHORT, "policy.toml")
    assert policy.size == Throughput(threshold=0.2, every_steps=20, add=2)
    assert (policy.stragglers, policy.hold_s, policy.text) == (None, HOLD_S, SHORT)


def test_the_example_is_a_policy() -> None:
    text = (Path(__file__).parents[2] / "examples" / "policy.toml").read_text()
    policy = parse_policy(text, "policy.toml")
    assert policy.size is not None
    assert policy.stragglers is not None


def test_times_are_written_with_their_unit() -> None:
    text = size('deadline = "2h"', "price = 3", 'hold = "15 m"', "settled = 90", rule="cost")
    policy = parse_policy(text, "policy.toml")
    assert policy.size == Cost(deadline_s=7200.0, price=3.0, settled_s=90.0)
    assert policy.hold_s == 900.0


def test_wishes_and_data() -> None:
    text = size('together = "max"', "every = 30", "data_wait = 0.3", rule="votes")
    policy = parse_policy(text, "policy.toml")
    assert policy.size == Votes("max", 30.0)
    assert policy.data_wait == 0.3


def test_stragglers_alone() -> None:
    policy = parse_policy('[stragglers]\nagain = "2m"\nreplaces = false', "policy.toml")
    assert policy.stragglers == Stragglers(again_s=120.0, replaces=False)
    assert policy.size is None
    check_sizes(policy, Sizes(2, 2), "policy.toml")


def test_a_utility() -> None:
    text = size("price = 1", 'utility = [[0, 10], ["3h", 0]]', rule="cost")
    assert parse_policy(text, "policy.toml").size == Cost(
        price=1.0, utility=((0.0, 10.0), (10800.0, 0.0))
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[size", "p.toml is not TOML: "),
        ("", 'p.toml says nothing; write [size] and below it rule = "throughput", or one of'),
        ("[stragglers]\nforgets = 2", "p.toml, line 2: forgets is 2; it must be at most 1"),
        (size("data_wait = 2"), "p.toml, line 3: data_wait is 2; it must be a part, above 0"),
        (
            size('together = "any"', rule="votes"),
            "p.toml, line 3: together is 'any'; it must be sum or mean or max",
        ),
        ("[size]", 'p.toml names no rule; write [size] and below it rule = "throughput"'),
        ("size = 3", "p.toml, line 1: size is a table: write [size] above its keys"),
        ("[stragglers]\nslow = 1", "p.toml, line 2: table stragglers has no 'slow'; did you mean"),
        (
            size("add = 1", "[stragglers]", "replaces = 1"),
            "p.toml, line 5: replaces is 1; it must be true or false",
        ),
        (
            "[stragglers]\npatience_steps = 9\n[size]\nrule = 'throughput'\npatience_steps = 1",
            "p.toml, line 5: rule throughput has no 'patience_steps'",
        ),
        ("[sise]\nrule = 1", "p.toml, line 1: there is no table [sise]; did you mean size?"),
        (size(rule="thruput"), "p.toml, line 2: there is no rule 'thruput'; did you mean throug"),
        (
            size("treshold = 0.1"),
            "p.toml, line 3: rule throughput has no 'treshold'; did you mean threshold?",
        ),
        (size("colour = 1"), "p.toml, line 3: rule throughput has no 'colour'; there are every"),
        (size("add = 0"), "p.toml, line 3: add is 0; it must be at least 1"),
        (size("add = 1.5"), "p.toml, line 3: add is 1.5; it must be a whole number"),
        (size("add = true"), "p.toml, line 3: add is True; it must be a whole number"),
        (size("", 'threshold = "x"'), "p.toml, line 4: threshold is 'x'; it must be a number"),
        (size("hold = 0"), "p.toml, line 3: hold is 0; it must be a time such as"),
        (size('settled = "soon"'), "p.toml, line 3: settled is 'soon'; it must be a time such"),
        (size(rule="cost"), "p.toml, line 2: rule cost needs to know what is wanted; add a"),
        (
            size("price = 2", rule="cost"),
            "p.toml, line 3: a price alone does not say what it is worth; add a deadline,",
        ),
        (size("max_cost = 2", rule="cost"), "p.toml, line 3: max_cost needs the price"),
        (
            size("price = 1", 'deadline = "1h"', "utility = [[0, 1], [9, 0]]", rule="cost"),
            "p.toml, line 5: utility and deadline contradict each other",
        ),
        (size("price = 1", "utility = [[1, 2]]", rule="cost"), "line 4: utility is a list of"),
        (size("price = 1", "utility = [[9, 2], [3, 0]]", rule="cost"), "each time later than"),
        (size("price = -1", 'deadline = "1h"', rule="cost"), "line 3: price is -1; it must be at"),
        ("[stragglers]\nslow_below = nan", "line 2: slow_below is nan; it must be a number"),
        (size("threshold = inf"), "line 3: threshold is inf; it must be a number"),
        (size("least_gain = nan", rule="goodput"), "line 3: least_gain is nan; it must be"),
        (size(f"price = {BIG}", "max_cost = 1", rule="cost"), f"price is {BIG}; it must be a"),
        (size("price = 1", "utility = [[1, nan], [2, 0]]", rule="cost"), "line 4: utility is a"),
        (size(f'every = "{BIG}s"', rule="votes"), f"every is '{BIG}s'; it must be a time"),
        (size(f"add = {5000 * '9'}"), "p.toml is not TOML: "),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(text, "p.toml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_of_one_size_cannot_find_another() -> None:
    policy = parse_policy(SHORT, "p.toml")
    check_sizes(policy, Sizes(1, 2), "p.toml")
    check_sizes(policy, Sizes(1), "p.toml")
    for sizes in (Sizes(2, 2), Sizes(1, 8, sizes=(4,)), Sizes(1, 5, size_step=4)):
        with pytest.raises(UsageError, match=f"the job may have {sizes} only"):
            check_sizes(policy, sizes, "p.toml")


# --- batches and learning rates


def test_batches_by_the_names_of_the_loaders() -> None:
    policy = parse_policy("[batch]\nbatch_size = 32\nmax_global_batch = 256", "policy.toml")
    assert policy.batch == Batching(32, 256)
    assert parse_policy("[batch]\nmax_global_batch = 256", "p").batch == Batching(0, 256)
    assert parse_policy("[batch]\nglobal_batch = 256", "p").batch == Batching(global_batch=256)
    assert parse_policy("[batch]\nglobal_batch = [64, 256]", "p").batch == Batching(
        batch_range=(64, 256)
    )


def test_a_schedule_and_a_scaling() -> None:
    text = """
[learning_rate]
schedule = "knee"
peak_lr = 0.4
warmup = 1000
total = 10_000
explore = 4000
scaling = "sqrt"
batch = 128
ramp = 4
"""
    found = parse_policy(text, "policy.toml").learning_rate
    assert found is not None
    assert found.schedule == Knee(peak_lr=0.4, warmup=1000, total=10_000, explore=4000)
    assert found.scaling == Scaling(rule="sqrt", batch=128, ramp=4)
    only = parse_policy('[learning_rate]\nscaling = "linear"\nbatch = 64', "p").learning_rate
    assert only == LearningRate(None, Scaling(rule="linear", batch=64))
    steps = 'schedule = "step"\npeak_lr = 1\nmilestones = [10, 20.5]'
    found = parse_policy(f"[learning_rate]\n{steps}", "p").learning_rate
    assert found == LearningRate(Step(peak_lr=1, milestones=[10, 20.5]), None)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["[batch]"], "line 1: table [batch] is empty; it may have batch_size"),
        (["[batch]", "size = 3"], "line 2: table [batch] has no 'size'; did you mean batch_size?"),
        (["[batch]", "batch_size = 0"], "line 2: batch_size is 0; it must be at least 1"),
        (["[batch]", "global_batch = [9, 3]"], "line 2: global_batch is [9, 3]; [batch] takes"),
        (["[learning_rate]"], "line 1: table [learning_rate] needs a schedule, like"),
        (
            ["[learning_rate]", 'schedule = "kneee"'],
            "line 2: there is no schedule 'kneee'; did you mean knee?",
        ),
        (["[learning_rate]", 'schedule = "knee"'], "line 2: schedule knee needs peak_lr"),
        (
            ["[learning_rate]", 'schedule = "knee"', "peak_lr = 1", "total = 10", "explore = 11"],
            "line 2: warmup is 0 samples and explore 11, together more than total, 10",
        ),
        (
            ["[learning_rate]", 'schedule = "constant"', "peak_lr = true"],
            "line 3: peak_lr is True; it must be a number",
        ),
        (
            ["[learning_rate]", 'schedule = "constant"', "peak_lr = 1", "total = 5"],
            "line 4: schedule constant has no 'total'",
        ),
        (
            ["[learning_rate]", 'schedule = "step"', "peak_lr = 1", "milestones = 5"],
            "line 4: milestones is 5; it must be numbers of samples, like [1000, 2000]",
        ),
        (["[learning_rate]", 'scaling = "liner"'], "line 2: there is no scaling 'liner'"),
        (
            ["[learning_rate]", 'scaling = "linear"'],
            "line 2: scaling needs batch, the global batch for which the learning rate was chosen",
        ),
        (
            ["[learning_rate]", 'scaling = "linear"', "batch = 8", "ramp = 1.5"],
            "line 4: ramp is 1.5; it must be a whole number of updates",
        ),
        (
            ["[learning_rate]", 'schedule = "constant"', "peak_lr = 1", "ramp = 3"],
            "line 4: ramp is",
        ),
        (
            ["[learning_rate]", 'schedule = "linear"', "peak_lr = 1", "total = 9", "end_lr = nan"],
            "line 5: end_lr is nan; it must be a number",
        ),
        (
            ["[learning_rate]", 'schedule = "linear"', "peak_lr = 1", "total = 9", "end_lr = -1"],
            "line 2: end_lr is -1; it must be 0 or more",
        ),
        (
            ["[learning_rate]", 'schedule = "step"', "peak_lr = 1", "milestones = [1, inf]"],
            "line 4: milestones is [1, inf]; it must be numbers of samples",
        ),
        (
            ["[learning_rate]", 'scaling = "linear"', f"batch = {BIG}"],
            f"line 3: batch is {BIG}; it must be a number of samples",
        ),
        (["[learning_rate]", 'scaling = "linear"', "peak_lr = 3"], "line 3: peak_lr is part of"),
    ],
)
def test_a_table_that_cannot_be_names_its_line(lines: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_policy("\n".join(lines), "policy.toml")
    assert str(refused.value).startswith("policy.toml, " + sentence)


def test_a_running_job_keeps_its_batches_and_its_learning_rate() -> None:
    before, same = (
        parse_policy(size() + "\n[batch]\nbatch_size = 4", "a"),
        "[batch]\nbatch_size = 4",
    )
    check_change(before, parse_policy(same, "b"), "b")
    for other in (
        size(),
        "[batch]\nbatch_size = 5",
        f'{same}\n[learning_rate]\nscaling="sqrt"\nbatch=4',
    ):
        with pytest.raises(UsageError, match=r"b has other .* or start the job anew"):
            check_change(before, parse_policy(other, "b"), "b")
