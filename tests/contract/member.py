"""A member of a ring of Horovod's: ``python tests/contract/member.py FRAMEWORK WORKER PORT``.

It reads the name of a case and the base of its generations' numbers, and answers with a line of
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import cases
import numpy as np

from edl.records import Generation
from edl.ring.gloo import gloo_ring


class ProcessMember:
    """See :class:`cases.Member`."""

    def __init__(self, framework: str, worker: int, port: int) -> None:
        self.worker, self._port = worker, port
        self.base = 0
        self._framework = framework
        if framework == "torch":
            import torch

            from edl.torch.collectives import TorchCollectives

            torch.set_num_threads(1)
            self.ring = gloo_ring(TorchCollectives(), "127.0.0.1")
        else:
            from edl.tensorflow.collectives import TensorFlowCollectives

            self.ring = gloo_ring(TensorFlowCollectives(), "127.0.0.1")

    def generation(self, number: int, *workers: int) -> Generation:
        number += self.base
        members = cases.ring_of(*workers, port=self._port)
        scope = f"g{number}-ab"
        if len(workers) > 1 and workers[0] == self.worker:
            print("announce", scope, flush=True)
        return Generation(number, 1, members, workers[0], (), (), "", scope=scope)

    def average(self, array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
        if self._framework == "torch":
            import torch

            from edl.torch.collectives import average_start, finish

            tensor = torch.from_numpy(array)
            return finish(average_start(tensor, torch.empty_like(tensor), name)).numpy()
        import tensorflow as tf

        from edl.tensorflow.collectives import allreduce_average

        return allreduce_average([tf.convert_to_tensor(array)])[0].numpy()

    def abort(self, generation: Generation) -> None:
        print("abort", generation.scope, flush=True)

    def now_s(self) -> float:
        return time.monotonic()


def main(framework: str, worker: int, port: int) -> None:
    member = ProcessMember(framework, worker, port)
    print("ready", flush=True)
    for line in sys.stdin:
        case, base = line.split()
        member.base = int(base)
        print("result", json.dumps(getattr(cases, case)(member)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
