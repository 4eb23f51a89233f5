"""The figures of learning rates that adapt.

They are trainings that depend on a seed only, and words that follow from the numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.adapting import __main__ as command
from benchmarks.adapting import drawing, elastic, knee, layers, tuner
from benchmarks.adapting.problems import Momentum, Net, Problem, Task, digits, indices, teacher
from benchmarks.adapting.spread import Mean, difference, listed, named, verdict
from benchmarks.page import Section
from edl.schedules import Knee

NET = Net((64, 16, 10))
SETTING = elastic.Setting(NET, rate=0.03, total=9_000, marks=4)
TINY = Task(digits, NET, 768, rates=(0.1, 0.01))
SEEDS = range(2)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "REDRAWN", 600)


# --- what is trained


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_the_gradient_is_that_of_the_loss(linear: bool, biases: bool) -> None:
    chance = np.random.default_rng(0)
    net = Net((5, 4, 3, 3), linear=linear, biases=biases)
    weights = net.begin(chance)
    x, y = chance.standard_normal((7, 5)), chance.integers(3, size=7)
    numbers = np.empty_like(weights)
    for i in range(len(weights)):
        aside = np.zeros_like(weights)
        aside[i] = 1e-6
        numbers[i] = (net.loss(weights + aside, x, y) - net.loss(weights - aside, x, y)) / 2e-6
    assert net.gradient(weights, x, y) == pytest.approx(numbers, abs=1e-8)


def test_both_forms_of_momentum_are_one_at_a_constant_rate() -> None:
    chance = np.random.default_rng(0)
    ones, others = np.ones(3), np.ones(3)
    torch, keras = Momentum(), Momentum(holds_rate=True)
    for _ in range(20):
        gradient = chance.standard_normal(3)
        torch.update(ones, gradient, 0.1)
        keras.update(others, gradient, 0.1)
    assert ones == pytest.approx(others, rel=1e-12)


def test_an_epoch_has_each_sample_once() -> None:
    picked = indices(5, 12, np.random.default_rng(0))
    assert sorted(picked[:5]) == sorted(picked[5:10]) == [0, 1, 2, 3, 4]
    assert len(picked) == 12


def test_the_data_are_of_the_seed_and_nothing_is_held_out_and_trained() -> None:
    one, again, other = digits(3), digits(3), digits(4)
    assert (one.x == again.x).all()
    assert (one.test_y != other.test_y).any()
    assert (len(one), len(one.test_y)) == (1438, 359)
    drawn = teacher(200, 50)
    assert (drawn.x.shape, drawn.test_x.shape) == ((200, 32), (50, 32))


# --- workers that come and go


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("method", elastic.METHODS)
def test_a_training_depends_on_its_seed_only(method: str) -> None:
    one, again, other = (
        elastic.train(digits(0), SETTING, elastic.METHODS[method], seed) for seed in (1, 1, 2)
    )
    assert (one.weights == again.weights).all()
    assert one.accuracy == again.accuracy
    assert (one.weights != other.weights).any()
    assert len(one.accuracy) == SETTING.marks


@pytest.mark.usefixtures("often")
def test_the_ramp_is_one_in_both_forms_of_momentum() -> None:
    assert len(set(elastic.sizes(0, SETTING.total))) > 3
    assert elastic.form_gap(digits(0), SETTING, 0) < 1e-6
    # As a test of the test: without the correction it is not.
    one = elastic.train(digits(0), SETTING, elastic.METHODS[elastic.IMMEDIATE], 0)
    other = elastic.train(digits(0), SETTING, elastic.METHODS[elastic.RAMP], 0)
    assert np.abs(one.weights - other.weights).max() > 1e-3


@pytest.mark.usefixtures("often")
def test_adascale_measures_the_noise_and_a_fixed_batch_needs_none() -> None:
    setting = replace(SETTING, total=36_000)
    ada = elastic.train(digits(0), setting, elastic.METHODS[elastic.ADASCALE], 0)
    fixed = elastic.train(digits(0), setting, None, 0)
    assert ada.noise_scale is not None
    assert ada.noise_scale > 0
    assert fixed.noise_scale is None
    assert fixed.updates == math.ceil(setting.total / elastic.BATCH) > 2 * ada.updates


def test_the_gradients_of_equal_workers_have_no_noise() -> None:
    g = np.array([3.0, 4.0])
    found = elastic._measured([g, g], g, None)
    assert found is not None
    assert (found.noise, found.signal, found.is_biased) == (0.0, 25.0, False)
    assert elastic._measured([g], g, None) is None
    alone = elastic._measured([g], g, g)
    assert alone is not None
    assert (alone.noise, alone.signal, alone.is_biased) == (0.0, 25.0, True)


# --- Knee


def test_the_sharpness_of_a_quadratic() -> None:
    """a_i w_i^2 / 2 is largest in the corner of the box that lies farthest from 0."""
    a, w, epsilon = np.array([1.0, 3.0]), np.array([1.0, -2.0]), 0.01
    corner = np.array([1.02, -2.03])
    first, largest = ((a * at**2).sum() / 2 for at in (w, corner))
    found = knee.sharpness(lambda at: float((a * at**2).sum() / 2), lambda at: a * at, w, epsilon)
    assert found == pytest.approx(100 * (largest - first) / (1 + first), rel=1e-9)
    assert knee.sharpness(lambda at: 1.0, np.zeros_like, w) == 0.0


@pytest.mark.parametrize("name", knee.SCHEDULES)
def test_a_schedule_is_trained_with_the_budget_that_it_is_for(name: str) -> None:
    schedule = knee.SCHEDULES[name](0.1, 1_200)
    one, again = (knee.train(digits(0), NET, schedule, 1_200, 0) for _ in range(2))
    assert one == again
    assert one.accuracy > 0.3
    assert one.sharpness > 0
    assert math.isnan(knee.train(digits(0), NET, schedule, 320, 0, sharp=False).sharpness)


# --- LRTuner


def test_without_a_tuner_it_is_knee_and_a_tuner_climbs_from_a_rate_that_is_too_low() -> None:
    problem, total = digits(0), 7_680
    plain = tuner.train(problem, NET, 0.1, total, 0, tunes=False)
    knee_ = Knee(peak_lr=0.1, total=total)
    assert plain.rates[:-1] == pytest.approx([knee_.at(at) for at in tuner.marks(total)[:-1]])
    assert (plain.changes, plain.measured) == (0, 0)
    low, again = (tuner.train(problem, NET, 0.001, total, 0, tunes=True) for _ in range(2))
    assert low == again
    assert low.changes > 0
    assert max(low.rates) >= 4 * low.rates[0] == pytest.approx(4e-4)
    spent = low.measured * 4 * tuner.PASS_S
    assert spent <= 1.5 * tuner.SHARE * total / tuner.BATCH * tuner.UPDATE_S


# --- layers


@pytest.mark.parametrize("workers", [1, 3, 16, 40])
def test_slices_of_any_number_of_workers_have_the_mean_of_the_whole(workers: int) -> None:
    problem, net = digits(0), Net(layers.WIDTHS, biases=False)
    weights, now = net.begin(np.random.default_rng(0)), np.arange(32)
    whole = net.gradient(weights, problem.x[now], problem.y[now])
    found = layers.mean_gradient(net, weights, problem, now, workers)
    assert found == pytest.approx(whole, abs=1e-15)


@pytest.mark.parametrize("linear", [True, False])
def test_a_fixed_global_batch_grows_layers_as_a_static_job(linear: bool) -> None:
    static, fixed, growing = (
        layers.train(digits(0), linear, kind, 4_800, 0, rate=0.1) for kind in layers.KINDS
    )
    assert layers.gap([fixed], [static]) < 1e-12
    assert layers.gap([static], [static]) == 0.0
    assert np.abs(static.drift()).max() < 0.1
    assert len(growing.rows) < len(static.rows) == layers.MARKS + 1


# --- what is said of it


def test_a_difference_is_one_if_it_is_beyond_the_spread() -> None:
    assert Mean.of([1.0, 2.0, 3.0]) == Mean(2.0, pytest.approx(1 / math.sqrt(3)), 3)
    assert not Mean.of([1.0, -1.0, 2.0]).is_sure
    assert not Mean.of([5.0]).is_sure
    assert difference([3.0, 4.1, 5.0], [1.0, 2.0, 3.1]).is_sure
    # 4.30 standard errors for three values, 2.36 for eight and for nine a little less.
    assert not Mean(4.2, 1.0, 3).is_sure
    assert Mean(2.4, 1.0, 8).is_sure
    assert not Mean(2.0, 1.0, 1000).is_sure
    nothing, more = Mean(0.1, 0.2, 5), Mean(-1.0, 0.2, 5)
    assert verdict(nothing) == "no difference beyond the spread (+0.10 ± 0.20 points)"
    assert verdict(more) == "1.00 points less (-1.00 ± 0.20)"
    assert listed([("a", nothing), ("b", more)]) == (
        "1.00 points less than b (± 0.20); no difference beyond the spread from a (+0.10 ± 0.20)"
    )
    assert named([("a", nothing), ("b", more)]) == (
        "b 1.00 points less (± 0.20); no difference beyond the spread: a (+0.10 ± 0.20)"
    )


def test_the_best_rate_is_found_without_the_seeds_of_the_figures() -> None:
    asked = []

    def accuracy(problem: Problem, rate: float, seed: int) -> float:
        asked.append(seed)
        return rate

    assert TINY.best(accuracy) == 0.1
    assert min(asked) >= 100


@pytest.mark.parametrize("module", [elastic, knee, tuner], ids=lambda module: module.__name__)
def test_a_figure_is_small_with_a_title_and_its_table_is_whole(
    module: ModuleType, tmp_path: Path
) -> None:
    found = module.measure([replace(TINY, rates=(0.1,))], SEEDS)
    module.draw(found, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size <= drawing.MOST_BYTES
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    section = module.section(found, SEEDS)
    assert section.title == module.TITLE
    assert f"({path.name})" in section.how
    assert all(len(row) == len(section.head) for row in section.rows)


def test_the_layers_are_drawn_and_told_to_be_equal(tmp_path: Path) -> None:
    found = layers.measure(range(1), total=1_920)
    layers.draw(found, tmp_path)
    assert (tmp_path / "adapting-layers.svg").stat().st_size <= drawing.MOST_BYTES
    section = layers.section(found, range(1))
    assert all(len(row) == len(section.head) for row in section.rows)
    assert sum("equal but for rounding" in note for note in section.notes) == 2


def test_the_same_numbers_are_the_same_file(tmp_path: Path) -> None:
    files = []
    for name in ("one.svg", "other.svg"):
        figure, (panel,) = drawing.panels(1, "two & two")
        drawing.curves(panel, [0.0, 1.0], {"a": [[1.0, 2.0], [3.0, 4.0]], "b": [[1.0, 1.0]]})
        drawing.save(figure, tmp_path / name, "two & two")
        files.append((tmp_path / name).read_text(encoding="utf-8"))
    assert files[0] == files[1]
    assert "<title>two &amp; two</title>" in files[0]
    assert not re.search(r"\.\d{3}", files[0])


def test_a_figure_alone_leaves_the_other_sections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def only(name: str, words: str) -> str:
        title = command.FIGURES[name].title
        made = Section(title, words, ["a", "b"], [["1", "2"]], ["note"])
        figure = command.Figure(title, len, lambda *_: None, lambda *_: made)
        monkeypatch.setitem(command.FIGURES, name, figure)
        arguments = ["adapting", "--only", name, "--seeds", "2", "--out", str(tmp_path)]
        monkeypatch.setattr("sys.argv", arguments)
        command.main()
        return (tmp_path / "adapting.md").read_text(encoding="utf-8")

    only("layers", "how one")
    first = only("knee", "how two")
    assert first.index(knee.TITLE) < first.index(layers.TITLE)
    again = only("layers", "how three")
    assert again == first.replace("how one", "how three")


def test_a_training_that_is_lost_is_counted() -> None:
    ends = {elastic.FIXED: (0.9, 0.9), elastic.IMMEDIATE: (0.81, 0.79)}
    trained = {
        method: [elastic.Trained((end,), 1, None, np.zeros(1)) for end in each]
        for method, each in ends.items()
    }
    one = elastic.Compared("digits", SETTING, True, trained)
    assert (one.lost(elastic.FIXED), one.lost(elastic.IMMEDIATE)) == (0, 1)
