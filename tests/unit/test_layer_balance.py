"""What follows from the norms of layers; the numbers were computed by hand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edl.contrib import layer_balance as diagnose
from edl.contrib.layer_balance import JobBalance, LayerBalance, Phases, phases_of
from edl.errors import UsageError

Array = npt.NDArray[np.float64]


class Net:
    """Matrices without biases, with ReLUs between them or nothing, and plain gradient descent."""

    def __init__(self, *matrices: Any, relu: bool = False) -> None:
        self.matrices: list[Array] = [np.array(each, dtype=np.float64) for each in matrices]
        self.relu = relu

    @classmethod
    def of(cls, *sizes: int, relu: bool = False) -> Net:
        draw = np.random.default_rng(1)
        return cls(*(0.3 * draw.normal(size=(b, a)) for a, b in pairwise(sizes)), relu=relu)

    def balance(self, kind: Callable[..., LayerBalance] = LayerBalance, **options: Any) -> Any:
        reads = {f"w{i}": lambda i=i: self.matrices[i] for i in range(len(self.matrices))}
        return kind(reads, **options)

    def gradients(self, x: Array, y: Array) -> list[Array]:
        """Of half of the mean squared error; a column of ``x`` and ``y`` is a sample."""
        inputs = [x]
        for matrix in self.matrices[:-1]:
            out = matrix @ inputs[-1]
            inputs.append(np.maximum(out, 0.0) if self.relu else out)
        error = (self.matrices[-1] @ inputs[-1] - y) / x.shape[1]
        found = []
        for matrix, before in zip(self.matrices[::-1], inputs[::-1], strict=True):
            found.append(error @ before.T)
            error = matrix.T @ error
            if self.relu:
                error = error * (before > 0.0)
        return found[::-1]

    def step(self, lr: float, x: Array, y: Array) -> list[Array]:
        found = self.gradients(x, y)
        for matrix, gradient in zip(self.matrices, found, strict=True):
            matrix -= lr * gradient
        return found


def two_records(*second: Any, matrices: bool = False) -> LayerBalance:
    net = Net([[1, 2], [3, 4]], [[1, 1]])
    balance: LayerBalance = net.balance(matrices=matrices)
    balance.record(0)
    net.matrices = [np.array(each, dtype=np.float64) for each in second]
    balance.record(10)
    return balance


def test_growth_and_drift_where_all_layers_grow_alike() -> None:
    balance = two_records([[2, 2], [3, 4]], [[2, 1]])  # 33 = 4 + 4 + 9 + 16, 5 = 4 + 1
    assert [(row.samples, row.squared_norms) for row in balance.rows] == [
        (0.0, (30.0, 2.0)),
        (10.0, (33.0, 5.0)),
    ]
    assert balance.growth().tolist() == [[0.3, 0.3]]
    assert balance.drift().tolist() == [[0.0], [0.0]]


def test_drift_where_they_do_not() -> None:
    balance = two_records([[1, 2], [3, 4]], [[3, 1]])  # 30 and 10: one has grown, one not
    assert balance.growth().tolist() == [[0.0, 0.8]]
    assert balance.drift().tolist() == [[0.0], [1.0]]
    balance = two_records([[1, 4], [3, 4]], [[2, 2]])  # 42 and 8: by 12 and by 6
    assert balance.drift().tolist() == [[0.0], [-0.5]]


def test_the_matrix_may_drift_where_the_norms_do_not() -> None:
    """W2^T W2 goes from [1 1; 1 1] to [4 2; 2 1], W1 W1^T from [5 11; 11 25] to [8 14; 14 25].

    They move by [3 1; 1 0], of norm sqrt(11), and [3 3; 3 0], sqrt(27); D by [0 -2; -2 0], sqrt(8).
    """
    balance = two_records([[2, 2], [3, 4]], [[2, 1]], matrices=True)
    assert balance.drift().tolist() == [[0.0], [0.0]]
    assert balance.rows[1].residuals == pytest.approx([math.sqrt(8)])
    assert balance.rows[1].moves == pytest.approx([math.sqrt(27)])
    assert balance.matrix_drift() == pytest.approx(np.array([[0.0], [math.sqrt(8 / 27)]]))


def test_pairs_whose_sizes_do_not_fit_have_no_matrix() -> None:
    net = Net([[1, 2]], [[1, 2]], [[3], [4]])
    balance = net.balance(matrices=True)
    balance.record(0)
    net.matrices[2] = net.matrices[2] * 2
    balance.record(1)
    drift = balance.matrix_drift()
    assert np.isnan(drift[:, 0]).all()
    assert drift[:, 1].tolist() == [0.0, 1.0]


def test_nothing_drifts_where_nothing_changes() -> None:
    balance = two_records([[1, 2], [3, 4]], [[1, 1]], matrices=True)
    for found in (balance.growth(), balance.drift(), balance.matrix_drift()):
        assert not found.any()
    assert balance.phases() == {"w0": Phases(), "w1": Phases()}


# --- training


def trained(relu: bool, lr: float = 1e-3, steps: int = 1500) -> LayerBalance:
    net, draw = Net.of(6, 8, 7, 4, relu=relu), np.random.default_rng(2)
    x = draw.normal(size=(6, 32))
    y = draw.normal(size=(4, 6)) @ x
    balance: LayerBalance = net.balance(matrices=True)
    balance.record(0)
    for step in range(1, steps + 1):
        net.step(lr, x, y)
        if step % 100 == 0:
            balance.record(32 * step)
    return balance


@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
def test_the_difference_of_norms_is_conserved(relu: bool) -> None:
    balance = trained(relu)
    change = np.abs(balance.squared_norms[-1] - balance.squared_norms[0])
    assert change.min() > 3.0  # the layers have moved, alike
    assert np.abs(balance.drift()).max() < 2e-3
    rates = balance.growth()
    assert np.ptp(rates, axis=1).max() < 0.01 * np.abs(rates).max()


def test_a_relu_breaks_the_identity_of_the_matrices() -> None:
    assert trained(relu=False).matrix_drift().max() < 5e-3
    assert trained(relu=True).matrix_drift()[-1].min() > 0.3


def test_the_drift_falls_with_the_learning_rate() -> None:
    """In equal time its steps are k times as many, and each adds 1 / k^2."""
    coarse, fine = (
        np.abs(trained(True, lr, n).drift()).max() for lr, n in ((2e-3, 500), (5e-4, 2000))
    )
    assert fine / coarse == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
def test_a_step_adds_what_the_law_says(relu: bool) -> None:
    net, draw, lr = Net.of(3, 5, 4, 2, relu=relu), np.random.default_rng(3), 0.1
    balance = net.balance()
    balance.record(0)
    squares = [
        float((g * g).sum()) for g in net.step(lr, draw.normal(size=(3, 9)), np.ones((2, 9)))
    ]
    balance.record(9)
    changes = np.diff(balance.squared_norms, axis=0)[0]
    expected = [lr * lr * (after - before) for before, after in pairwise(squares)]
    assert np.diff(changes) == pytest.approx(expected, rel=1e-9, abs=1e-14)


# --- phases


T = np.linspace(0.0, 100.0, 1001)


def sigmoid(middle: float, k: float) -> Array:
    return 2.0 + 3.0 / (1.0 + np.exp(-k * (T - middle)))


def test_a_sigmoid_has_a_plateau_a_rise_and_a_saturation() -> None:
    for norms in (sigmoid(50, 0.4), 9.0 - sigmoid(50, 0.4)):  # it may shrink as well
        found = phases_of(T, norms)
        assert found.rise == pytest.approx(50 - math.log(9) / 0.4, abs=0.01)
        assert found.saturation == pytest.approx(50 + math.log(9) / 0.4, abs=0.01)


def test_a_rise_that_is_not_over() -> None:
    found = phases_of(T, sigmoid(100, 0.4))  # the record ends in the middle
    assert found.rise is not None
    assert found.rise > 90
    assert found.saturation is None
    straight = phases_of(T, T)  # one rise from the first record to the last
    assert (straight.rise, straight.saturation) == (0.0, None)


def test_a_rise_without_a_plateau() -> None:
    found = phases_of(T, 1.0 - np.exp(-T / 10))
    assert found.rise == 0.0
    assert found.saturation == pytest.approx(10 * math.log(10), abs=0.02)


def test_phases_are_found_between_records() -> None:
    found = phases_of(np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.0, 0.0, 8.0, 8.0]))
    assert found == Phases(pytest.approx(11.0), pytest.approx(19.0))  # type: ignore[arg-type]


def test_a_layer_that_became_no_number_has_no_phases() -> None:
    assert phases_of(np.array([0.0, 1.0]), np.array([1.0, math.nan])) == Phases()


# --- the record


def test_a_job_that_goes_back_records_anew() -> None:
    net = Net([[1.0]], [[2.0]])
    balance = net.balance()
    for samples in (0, 10, 20):
        net.matrices[0] = net.matrices[0] + 1.0
        balance.record(samples)
    balance.record(10)
    assert balance.samples.tolist() == [0.0, 10.0]
    assert balance.squared_norms.tolist() == [[4.0, 4.0], [16.0, 4.0]]


def test_the_record_follows_the_job() -> None:
    balance = two_records([[2, 2], [3, 4]], [[2, 1]], matrices=True)
    net = Net([[2, 2], [3, 4]], [[4, 1]])
    newcomer = net.balance(matrices=True)
    newcomer.load_state_dict(balance.state_dict())
    assert newcomer.rows == balance.rows
    newcomer.record(20)  # W2^T W2 is [16 4; 4 1]: D has gone by [15 3; 3 0] - [3 3; 3 0]
    assert newcomer.rows[2].residuals == pytest.approx([12.0])
    newcomer.load_state_dict(net.balance(matrices=True).state_dict())
    assert newcomer.rows == ()
    with pytest.raises(
        UsageError, match="of the job is of w0, w1, and this script's of w0, w1, w2"
    ):
        Net.of(1, 1, 1, 1).balance(matrices=True).load_state_dict(balance.state_dict())
    with pytest.raises(UsageError, match="matrices there True, here False"):
        net.balance().load_state_dict(balance.state_dict())


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="two layers or more, and there is only w0"):
        Net([[1.0]]).balance()
    with pytest.raises(UsageError, match="two layers or more, and there is none"):
        Net().balance()
    balance = Net([[1.0]], [[1.0]]).balance()
    for samples in (-1, math.nan):
        with pytest.raises(UsageError, match="samples cannot be trained"):
            balance.record(samples)
    for ask in (balance.growth, balance.drift, balance.matrix_drift, balance.phases):
        with pytest.raises(UsageError, match=r"needs two records .* there is none"):
            ask()
    for _ in range(3):
        balance.record(64)  # of a batch, not of all
    with pytest.raises(UsageError, match=r"growth needs two .* there is one, at 64 samples"):
        balance.growth()
    balance.record(128)
    with pytest.raises(UsageError, match=r"write layer_balance\(\.\.\., matrices=True\)"):
        balance.matrix_drift()


# --- the figure


@pytest.mark.parametrize(("name", "begin"), [("b.png", b"\x89PNG"), ("b.svg", b"<?xml")])
def test_it_is_drawn(name: str, begin: bytes, tmp_path: Path) -> None:
    balance = two_records([[2, 2], [3, 4]], [[2, 1]], matrices=name == "b.png")
    balance.plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    balance = Net.of(1, 1, 1).balance()
    with pytest.raises(UsageError, match=r"balance.plot needs two records .* there is none"):
        balance.plot(tmp_path / "b.png")
    with pytest.raises(UsageError, match=r"the name must end with \.png or \.svg"):
        balance.plot(str(tmp_path / "b.pdf"))
    with pytest.raises(UsageError, match="there is no folder"):
        balance.plot(tmp_path / "nosuch" / "b.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        UsageError, match=r"balance.plot needs matplotlib: `pip install matplotlib`"
    ):
        balance.plot(tmp_path / "b.png")


# --- in a job


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    progress, update = SimpleNamespace(attached=True), SimpleNamespace(after=0)
    loader = SimpleNamespace(progress=progress, update=update)
    found = SimpleNamespace(warming_up=False, loader=loader)
    monkeypatch.setattr(diagnose, "is_initialized", lambda: True)
    monkeypatch.setattr(diagnose, "current_worker", lambda: found)
    return found


def test_samples_are_those_of_the_job(worker: SimpleNamespace) -> None:
    balance = Net.of(2, 2, 2).balance(JobBalance)
    for samples in (0, 48, 112):
        worker.loader.update.after = samples
        balance.record()
    assert balance.samples.tolist() == [0.0, 48.0, 112.0]
    balance.record(120)
    assert balance.samples.tolist() == [0.0, 48.0, 112.0, 120.0]


def test_a_warm_up_is_not_recorded(worker: SimpleNamespace) -> None:
    worker.warming_up = True
    balance = Net.of(2, 2, 2).balance(JobBalance)
    balance.record()
    balance.record(64)
    assert balance.rows == ()


def test_where_nobody_counts_the_samples_they_must_be_given(
    worker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    balance = Net.of(2, 2, 2).balance(JobBalance)
    worker.loader.progress.attached = False  # as with a Horovod elastic state
    with pytest.raises(UsageError, match=r"balance.record\(samples\)"):
        balance.record()
    monkeypatch.setattr(diagnose, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"balance.record\(samples\)"):
        balance.record()
    balance.record(7)
    assert balance.samples.tolist() == [7.0]
