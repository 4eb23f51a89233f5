"""Compare the weights of an unchanged script before its training: :class:`ScriptWeights`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from edl.framework.digest import PLAIN_BYTES, ByteRange
from edl.torch.digest import digests, size_of

Exchange = Callable[[bytes], list[bytes]]


class ScriptWeights:
    """The weights of a script before its training, as far as its workers have compared them."""

    def __init__(self) -> None:
        self._unlike: set[int] = set()  # addresses of tensors

    @property
    def are_alike(self) -> bool:
        """Whether each tensor was the same on all workers when it was last compared."""
        return not self._unlike

    def compare(self, tensors: Mapping[str, torch.Tensor], exchange: Exchange) -> None:
        """Note whether all workers have the same ``tensors``; all call it at the same point.

        Args:
            tensors: the tensors by name, such as :func:`comparable_tensors` returns them.
            exchange: sends a message and returns those of all workers in rank order.
        """
        compared = {each.data_ptr() for each in tensors.values()}
        alike = _are_alike(tensors, exchange)
        self._unlike = self._unlike - compared if alike else self._unlike | compared


def comparable_tensors(named: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors among the values of ``named``, without sparse and quantized ones."""
    tensors = {name: each for name, each in named if isinstance(each, torch.Tensor)}
    return {
        name: each
        for name, each in tensors.items()
        if each.layout is torch.strided and not (each.is_quantized or each.is_meta)
    }


def _are_alike(values: Mapping[str, Any], exchange: Exchange) -> bool:
    """Return whether all workers give the same names and values."""
    found = digests(
        ByteRange(name, one, 0, size_of(one) or PLAIN_BYTES, True) for name, one in values.items()
    )
    own = zlib.crc32(repr(sorted(found.items())).encode())
    return len(set(exchange(str(own).encode()))) == 1
