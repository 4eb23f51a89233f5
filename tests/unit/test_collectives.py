"""On a Horovod without edl's patch a wait costs no processor time, and hardly any time."""

from __future__ import annotations

import time
from types import SimpleNamespace

import horovod.torch as hvd
import pytest
from horovod.torch import mpi_ops

from edl.errors import UsageError
from edl.torch import collectives

HANDLE = 7
WAIT_S = 0.1


class Collective:
    """A collective that is done ``WAIT_S`` after the first look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self._done_at = 0.0
        monkeypatch.setattr(collectives, "WAITS_ASLEEP", False)
        monkeypatch.setattr(hvd, "poll", self._poll)
        monkeypatch.setattr(hvd, "synchronize", lambda handle: mpi_ops._handle_map.pop(handle, 0))
        monkeypatch.setattr(mpi_ops, "_handle_map", {HANDLE: "the output"})

    def _poll(self, handle: int) -> bool:
        assert handle == HANDLE
        self.looks += 1
        self._done_at = self._done_at or time.monotonic() + WAIT_S
        return time.monotonic() >= self._done_at


def test_a_wait_does_not_keep_a_processor_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod's own wait would look some 100,000 times."""
    collective = Collective(monkeypatch)
    assert collectives.finish(HANDLE) == "the output"
    assert 1 < collective.looks < 1.5 * WAIT_S / collectives.LONGEST_PAUSE_S


def test_what_was_waited_for_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod forgets a handle at once, and to look for it then is an error."""
    collective = Collective(monkeypatch)
    collectives.finish(HANDLE)
    looks = collective.looks
    assert collectives.finish(HANDLE) == 0
    assert collective.looks == looks


def test_a_tensor_on_a_gpu_beside_a_horovod_for_cpus() -> None:
    tensor = SimpleNamespace(type=lambda: "torch.cuda.FloatTensor")
    with pytest.raises(UsageError, match=r"built for CPUs: `edl build-horovod --gpu`"):
        collectives.guarded(mpi_ops._check_function, mpi_ops._allreduce_function_factory, tensor)
