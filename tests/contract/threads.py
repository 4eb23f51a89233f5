"""The members of a loopback ring: threads in an order that a seed chooses, without any waiting."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np

from edl.records import Generation
from edl.ring.loopback import CollectivePoint, LoopbackNetwork
from edl.testing.schedule import Random, TaskScheduler


class Threads:
    bound_s = 31.0  # of virtual time: Gloo's own time-out

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds

    def run(self, case: str) -> list[Any]:
        results: dict[int, Any] = {}
        for seed in range(self._seeds):
            schedule = TaskScheduler(Random(seed))

            def disturb(_moment: CollectivePoint, schedule: TaskScheduler = schedule) -> None:
                schedule.pause()

            network = LoopbackNetwork(schedule, schedule.chance.below, disturb)

            def live(worker: int, network: LoopbackNetwork = network) -> None:
                results[worker] = getattr(cases, case)(ThreadMember(network, worker))

            tasks = [
                schedule.start(f"w{worker}", lambda worker=worker, live=live: live(worker))
                for worker in range(cases.WORKERS)
            ]
            schedule.run()
            for task in tasks:
                if task.error is not None:
                    raise task.error
        return [results[worker] for worker in sorted(results)]


class ThreadMember:
    def __init__(self, network: LoopbackNetwork, worker: int) -> None:
        self._network = network
        self.worker = worker
        self.ring = network.ring(worker)

    def generation(self, number: int, *workers: int) -> Generation:
        return Generation(number, 1, cases.ring_of(*workers), workers[0], (), (), "", scope="g-ab")

    def average(self, array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
        member = self._network.member(self.worker)
        return member.average_finish(member.average_start(array, name))

    def abort(self, generation: Generation) -> None:
        keeper = generation.members[0].id
        self._network.serve(keeper, generation.number)
        self._network.abort(keeper, generation)

    def now_s(self) -> float:
        return self._network.clock.now_s()
