"""A training script that starts processes in every step, in each of the ways that Python has.

`unguarded` as its argument: its training is not under a main guard, and a pool runs it again.
"""

import concurrent.futures
import multiprocessing
import subprocess
import sys

import lean  # noqa: F401
import torch

import edl.torch as edl

SAMPLES, BATCH_SIZE, POOL = 96, 4, 4  # 12 steps of two workers
SLOW_STEPS = {0: "spawn", 1: "forkserver"}  # a process of theirs imports torch first


def double(number):
    return 2 * number


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def use_processes(step):
    """All the ways; each must give its result, and its processes must end."""
    numbers = list(range(POOL))
    doubled = [double(number) for number in numbers]
    with multiprocessing.Pool(POOL) as pool:
        assert pool.map(double, numbers) == doubled
    multiprocessing.Pool(POOL).terminate()
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        assert list(executor.map(double, numbers)) == doubled
    assert subprocess.run(["echo", "hello"], capture_output=True, check=True).stdout == b"hello\n"
    sleeping = subprocess.Popen(["sleep", "60"])
    sleeping.terminate()
    assert sleeping.wait(10) == -15
    if step in SLOW_STEPS:
        with multiprocessing.get_context(SLOW_STEPS[step]).Pool(1) as pool:
            assert pool.map(double, numbers) == doubled


def main():
    torch.set_num_threads(1)
    edl.init()
    ways = {"fork": {}, "spawn": {"multiprocessing_context": "spawn"}}
    way = "fork" if edl.rank() == 0 else "spawn"
    loader = edl.DataLoader(Numbers(), batch_size=BATCH_SIZE, num_workers=1, **ways[way])
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model)
    for _epoch in loader.epochs(1):
        for batch in loader:
            use_processes(edl.step())
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    print("trained", edl.step(), "steps with a loader's process by", way, flush=True)


def main_unguarded():
    edl.init()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(double, [1])


if "unguarded" in sys.argv:
    main_unguarded()
elif __name__ == "__main__":
    main()
