"""Keep gradients and optimizer states in the memory order of their parameters.

PyTorch's fused optimizers go through the memory of a parameter, its gradient and its state at once.
On a CPU they do not check that the orders are the same, and on a GPU they raise an error. Tensors
that come from other workers or from a checkpoint are row-major, and a parameter need not be
(``channels_last``, a transposed matrix).
"""

from __future__ import annotations

import torch


def laid_out_like(
    parameter: torch.Tensor, tensor: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    if tensor.stride() == parameter.stride():
        return tensor.to(dtype)
    laid_out = torch.empty_like(parameter, dtype=dtype, device=tensor.device)
    return laid_out.copy_(tensor)
