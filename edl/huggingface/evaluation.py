"""Share the evaluation of a ``Trainer`` among the workers: each batch is evaluated once.

The loop over batches, the padding and the metrics are those of ``transformers.Trainer`` (tried with
release 5.24).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from transformers.trainer_pt_utils import find_batch_size, nested_concat
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, denumpify_detensorize

from edl.binding import process
from edl.huggingface.refused import from_all
from edl.step.ledger import Span
from edl.step.source import open_parts, parts_of
from edl.torch.loader import PASSED_ON

# A method of one of these names may add up numbers of its own, which would be of a part only.
COLLECTING = ("prediction_step", "evaluation_loop", "log")
KNOWN = ("transformers", "edl")  # whose own methods add up none
CALL = "evaluate()"


@dataclass(frozen=True)
class PartResult:
    """The result of a worker's evaluation of some consecutive batches."""

    losses: tuple[float, ...]  # the mean loss of each batch; empty if the model returns none
    samples: tuple[int, ...]  # of each batch that has a loss
    predictions: Any  # and `labels`: as in `EvalLoopOutput`; None if there are none
    labels: Any
    inputs: Any  # of the model, if the metrics need them


def can_share(trainer: Any, loader: Any) -> bool:
    # With batch_eval_metrics an object of the script's adds up the metrics, batch by batch.
    if trainer.args.batch_eval_metrics or not isinstance(loader, DataLoader):
        return False
    if isinstance(loader.dataset, IterableDataset):  # workers may see other batches
        return False
    for kind in type(trainer).__mro__:
        own = kind.__module__.partition(".")[0] not in KNOWN
        if own and any(name in vars(kind) for name in COLLECTING):
            return False
    batches = loader.batch_sampler  # the script's own may give another order on each worker
    return type(batches) is BatchSampler and type(batches.sampler) is SequentialSampler


def evaluate_shared(
    trainer: Any, loop: Callable[[Any], Any], loader: DataLoader[Any], prefix: str
) -> Any:
    """Evaluate all batches of `loader` together, between two steps; all get the same output."""
    batches: Any = loader.batch_sampler
    indices = list(batches)
    found: dict[Span, PartResult] = {}
    left: tuple[Span, ...] = ((0, len(indices)),) if indices else ()
    own_id = process.current_worker().id
    # The answer of an exchange is the same on all survivors; the ring may change at any time.
    members: list[int] = from_all(CALL, own_id)
    while left:
        parts = parts_of(left, members.index(own_id), len(members))
        own = {
            (start, stop): _evaluate(trainer, loop, _part(loader, indices[start:stop]))
            for start, stop in parts
        }
        answers = from_all(CALL, (own_id, own))
        for _, theirs in answers:
            found |= theirs
        left = open_parts(left, len(members), found.keys())  # what the dead have left
        members = [worker for worker, _ in answers]
    ordered = [found[part] for part in sorted(found)]
    return _output(trainer, ordered, len(loader.dataset), prefix)  # type: ignore[arg-type]


def _part(loader: DataLoader[Any], batches: Sequence[list[int]]) -> DataLoader[Any]:
    options: dict[str, Any] = {name: getattr(loader, name) for name in PASSED_ON}
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
    return DataLoader(
        loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn, **options
    )


def _evaluate(trainer: Any, loop: Callable[[Any], Any], loader: DataLoader[Any]) -> PartResult:
    step, compute = trainer.prediction_step, trainer.compute_metrics
    losses: list[float] = []
    samples: list[int] = []
    inputs: list[Any] = []

    def recorded(model: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
        answer = step(model, batch, *arguments, **named)
        if answer[0] is not None:
            losses.append(answer[0].item())
            samples.append(find_batch_size(batch) or 1)
        return answer

    def kept(prediction: Any) -> dict[str, float]:
        inputs.append(prediction.inputs)
        return {}

    with _attributes(
        trainer, prediction_step=recorded, compute_metrics=None if compute is None else kept
    ):
        output = loop(loader)
    return PartResult(
        tuple(losses),
        tuple(samples),
        output.predictions,
        output.label_ids,
        inputs[0] if inputs else None,
    )


@contextmanager
def _attributes(target: Any, **values: Any) -> Iterator[None]:
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    vars(target).update(values)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(target, name, before[name])
            else:
                delattr(target, name)


def _output(trainer: Any, parts: Sequence[PartResult], total: int, prefix: str) -> Any:
    args = trainer.args
    concat = args.eval_do_concat_batches
    predictions = _together([part.predictions for part in parts], concat)
    labels = _together([part.labels for part in parts], concat)
    losses = [
        np.full(count, loss, dtype=np.float32)  # as Trainer has them
        for part in parts
        for loss, count in zip(part.losses, part.samples, strict=True)
    ]
    metrics: dict[str, Any] = {}
    if trainer.compute_metrics is not None and predictions is not None and labels is not None:
        own: dict[str, Any] = {}
        if "loss" in args.include_for_metrics and losses:
            own["losses"] = np.concatenate(losses) if concat else losses
        if "inputs" in args.include_for_metrics:
            own["inputs"] = _together([part.inputs for part in parts], concat)
        metrics = denumpify_detensorize(
            trainer.compute_metrics(
                EvalPrediction(predictions=predictions, label_ids=labels, **own)
            )
        )
    if losses:
        metrics[f"{prefix}_loss"] = _mean(np.concatenate(losses), args.logging_nan_inf_filter)
    named = {
        name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value
        for name, value in metrics.items()
    }
    return EvalLoopOutput(predictions, labels, named, total)


def _together(values: Sequence[Any], concat: bool) -> Any:
    present = [each for each in values if each is not None]
    if not present:
        return None
    if not concat:
        return [batch for each in present for batch in each]
    return functools.reduce(nested_concat, present)


def _mean(losses: Any, finite_only: bool) -> float:
    finite = np.isfinite(losses)
    if finite_only and finite.any():
        losses = losses[finite]
    return float(losses.mean())
