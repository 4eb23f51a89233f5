"""Normalise batches over the samples of all workers: ``SyncBatchNorm`` in the job's ring.

``torch.nn.SyncBatchNorm`` uses ``torch.distributed``, and without a process group it normalises
over the local batch only; Horovod's layer needs a GPU, and its collectives are not repaired when a
worker dies. After :func:`synchronise_batch_norm`, both layers compute the following instead while
edl trains, in the job's ring.

Let worker i have n_i samples that count in this batch (0 for padding), and L_i be the mean of its
losses. edl multiplies its gradients by n_i / N, with N = sum n_i. So the loss of the job is

    sum_i n_i / N L_i

The layer computes the output y = gamma xhat + beta of an input x, with xhat = (x - mean) / sigma.
mean is the mean of the channel over all workers, and sigma the square root of its variance plus
eps; gamma and beta are the layer's parameters. Let g be the derivative of L_i by y, and M the
number of elements of a channel in the batches of all workers. Then the derivative of the job's loss
by an input of worker i is

    gamma / sigma * (n_i / N g - 1/M sum_j n_j / N S_j - xhat/M sum_j n_j / N Q_j)

where S_j = sum g and Q_j = sum g xhat over the elements of worker j. This layer returns it divided
by n_i / N, in which N cancels. A worker with padding gets finite numbers that count for nothing.

If a worker dies during an exchange, the survivors go on with the same statistics
(:mod:`edl.worker.loader_steps`). In evaluation, in a warm-up, in a job of one worker and between
two steps the statistics are those of the local batch.

A script with an elastic state has Horovod's optimizer, whose loss is the mean of all L_i: n_i / N
is 1 / size then, and a broken ring interrupts the script, as in any of its own collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from edl.binding.process import current_worker, is_initialized
from edl.step.moments import Channels, Moments, combined, weighted_sum

Exchange = Callable[[bytes], list[bytes]]


def synchronise_batch_norm(exchange_of_step: Callable[[], Exchange | None]) -> None:
    """Make PyTorch's and Horovod's `SyncBatchNorm` exchange statistics by the job's ring."""
    kinds: list[Any] = [torch.nn.SyncBatchNorm, hvd.SyncBatchNorm]
    for kind in kinds:
        kind.forward = _synchronised(kind.forward, exchange_of_step)


def _synchronised(alone: Any, exchange_of_step: Callable[[], Exchange | None]) -> Any:

    def forward(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        if not is_initialized():
            return alone(self, inputs)  # type: ignore[no-any-return]
        self._check_input_dim(inputs)
        exchange, weight = _exchange(exchange_of_step) if self.training else (None, 0)
        if exchange is None:
            # Horovod's layer would use its own collectives, and refuses a CPU.
            local: torch.Tensor = torch.nn.modules.batchnorm._BatchNorm.forward(self, inputs)
            return local
        outputs, moments = _Normalise.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, self.eps, weight, exchange
        )
        _track(self, moments)
        return outputs  # type: ignore[no-any-return]

    return forward


def _exchange(exchange_of_step: Callable[[], Exchange | None]) -> tuple[Exchange | None, int]:
    worker = current_worker()
    if (exchange := exchange_of_step()) is not None:
        return exchange, worker.steps.batch_weight
    if worker.steps is worker.script and not (worker.warming_up or worker.ring.alone):
        return worker.script.exchange, 1
    return None, 0


def _track(layer: Any, moments: Moments) -> None:
    if not layer.track_running_stats or moments.elements == 0:
        return
    layer.num_batches_tracked.add_(1)
    factor = layer.momentum
    if factor is None:  # the average over all batches
        factor = 1.0 / float(layer.num_batches_tracked)
    unbiased = moments.squares / max(moments.elements - 1.0, 1.0)
    with torch.no_grad():
        for running, value in ((layer.running_mean, moments.mean), (layer.running_var, unbiased)):
            running.lerp_(torch.from_numpy(value).to(running), factor)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        gamma: torch.Tensor | None,
        beta: torch.Tensor | None,
        eps: float,
        weight: int,
        exchange: Exchange,
    ) -> tuple[torch.Tensor, Moments]:
        x = inputs.to(_wide(inputs.dtype))
        own = _moments(x, weight)
        moments = combined([Moments.decode(each) for each in exchange(own.encode())])
        if moments.elements == 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(inputs.shape)}"
            )
        shape = (1, -1, *([1] * (x.dim() - 2)))
        mean = torch.from_numpy(moments.mean).to(x).view(shape)
        scale = torch.from_numpy(1.0 / np.sqrt(moments.variance + eps)).to(x).view(shape)
        normal = (x - mean) * scale
        outputs = normal if gamma is None else normal * gamma.to(x).view(shape)
        if beta is not None:
            outputs = outputs + beta.to(x).view(shape)
        ctx.save_for_backward(normal, gamma, beta, scale)
        ctx.elements, ctx.weight, ctx.exchange = moments.elements, weight, exchange
        ctx.kind = inputs.dtype
        return outputs.to(inputs.dtype), moments

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _moments_gradient: Any) -> tuple[Any, ...]:
        normal, gamma, beta, scale = ctx.saved_tensors
        g = gradient.to(normal.dtype)
        others = [axis for axis in range(g.dim()) if axis != 1]
        total, along = g.sum(others), (g * normal).sum(others)
        shape = (1, -1, *([1] * (g.dim() - 2)))
        inputs = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([total, along]).double().cpu().numpy()
            row = np.concatenate([[float(ctx.weight)], sums])
            whole = weighted_sum(ctx.exchange(row.tobytes()))
            part = whole / (ctx.weight or 1) / max(ctx.elements, 1.0)
            mean_g, mean_along = (
                torch.from_numpy(half).to(g).view(shape) for half in np.split(part, 2)
            )
            inputs = (g - mean_g - normal * mean_along) * scale
            if gamma is not None:
                inputs = inputs * gamma.to(g).view(shape)
            inputs = inputs.to(ctx.kind)
        by_gamma = along.to(gamma.dtype) if ctx.needs_input_grad[1] else None
        by_beta = total.to(beta.dtype) if ctx.needs_input_grad[2] else None
        return inputs, by_gamma, by_beta, None, None, None


def _moments(x: torch.Tensor, weight: int) -> Moments:
    channels = x.shape[1]
    if weight == 0 or x.numel() == 0:
        return Moments(0.0, np.zeros(channels), np.zeros(channels))
    rows = x.detach().transpose(0, 1).reshape(channels, -1)
    variance, mean = torch.var_mean(rows, dim=1, correction=0)
    count = rows.shape[1]
    return Moments(float(count), _array(mean), count * _array(variance))


def _array(values: torch.Tensor) -> Channels:
    found: Channels = values.double().cpu().numpy()
    return found


def _wide(kind: torch.dtype) -> torch.dtype:
    return torch.float32 if kind in (torch.float16, torch.bfloat16) else kind
