"""edl.torch in a ring: the gradient of a step is the mean over its global batch, for all dtypes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from paths import SCRIPTS
from steplog import read_steps
from wrong import answers_of, assert_a_sentence

from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = pytest.mark.integration

SAMPLES, EPOCHS = 203, 4
SLOW = Throttle(0.5, 40, 4.0)  # a job of about 100 steps


@pytest.mark.long  # property/test_torch_on_loopback.py in `make test`
def test_same_gradient_and_schedules_through_a_join(tmp_path: Path, zk_hosts: str) -> None:
    """2 workers, then 3: uneven batches, every dtype, schedulers in step on old and new."""
    out = tmp_path / "out"
    out.mkdir()
    script = [SCRIPTS / "torch_api.py", "--out", str(out)]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=SLOW) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
    steps, finals = read_steps(out)

    assert len(finals) == 3
    for other in finals[1:]:
        assert other["final"] == finals[0]["final"]
        assert other["steps"] == finals[0]["steps"] == len(steps)
    assert [final["resizes"] for final in finals] == [[[2, 3]]] * 3  # the newcomer's, too

    seen: dict[int, list[int]] = defaultdict(list)
    wide = [0.0] * SAMPLES
    brain = seldom = 0.0
    rate = 1.0
    for step in range(len(steps)):
        rows = steps[step]
        assert len({row["norm"] for row in rows}) == 1, "clipping sees the reduced gradient"
        assert [row["rate"] for row in rows] == pytest.approx([rate] * len(rows), rel=1e-9), step
        trained = [index for row in rows for index in row["indices"]]
        seen[rows[0]["epoch"]] += trained
        for index in trained:
            wide[index] -= rate / len(trained)
        brain -= rate
        rate *= 0.999
        if step + 1 not in steps or steps[step + 1][0]["epoch"] != rows[0]["epoch"]:
            rate *= 0.5
    assert {epoch: sorted(indices) for epoch, indices in seen.items()} == {
        epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)
    }
    final = finals[0]["final"]
    assert final["wide"] == pytest.approx(wide, abs=1e-12)
    assert final["unused"] == [0.0, 0.0, 0.0]
    assert final["frozen"] == [1.0, 1.0]
    assert final["narrow"][0] == pytest.approx(1.0 + brain, rel=2e-2)
    assert final["brain"][0] == pytest.approx(1.0 + brain, rel=1e-1)
    assert final["seldom"][0] < seldom, "a parameter that only some workers use is trained"


SETUP = """
data = [0.0, 1.0]
model = torch.nn.Linear(1, 1); sgd = torch.optim.SGD(model.parameters(), lr=0.1)
def loop(source=data, **options):
    global loader, opt
    edl.init(); loader = edl.DataLoader(source, **options); opt = edl.Optimizer(sgd, model)
def train(x=torch.ones(1, 1)):
    opt.zero_grad(); model(x).sum().backward(); opt.step()
def every_batch(act):
    for _ in loader.epochs(1):
        for _ in loader: act()
def sentences():  # what edl logs from now on
    import logging
    from types import SimpleNamespace
    heard = []
    logging.getLogger("edl").addHandler(
        SimpleNamespace(level=0, handle=lambda record: heard.append(record.getMessage())))
    return heard
def skips(check=lambda moved: None):  # steps with infinite gradients, in the second epoch
    scaler, moved = torch.amp.GradScaler("cpu", init_scale=8.0), []
    for epoch in loader.epochs(2):
        for _ in loader:
            before, times = model.weight.item(), float("inf") if epoch else 1.0
            opt.zero_grad()
            scaler.scale(model(torch.ones(1, 1)).sum() * times).backward()
            with opt.skip_synchronize():
                scaler.step(opt)
            scaler.update()
            moved.append(model.weight.item() != before)
            check(moved[-1])
    assert moved == [True, True, False, False] and edl.step() == 4
    assert scaler.get_scale() == 2.0
"""
RIGHT_USES = {
    "a loop by steps": """
loop([0.0] * 4)
seen = []
for _ in loader.steps(6): seen.append((edl.step(), loader.batch_index)); train()
assert seen == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1)], seen
assert edl.step() == 6 and edl.current_worker().finished
""",
    "a loop by steps of several batches": """
loop([0.0] * 8)
made = 0
for number, _ in enumerate(loader.steps(3)):
    made += 1
    if number % 2 == 0:
        with edl.no_sync(): model(torch.zeros(1)).mean().backward()
    else:
        model(torch.zeros(1)).mean().backward(); opt.step(); opt.zero_grad()
assert (made, edl.step()) == (6, 3), (made, edl.step())
""",
    "epochs until so many steps are made": """
loop([0.0] * 4)
for epoch in loader.epochs(max_steps=6):
    for _ in loader: train()
assert (epoch, edl.step()) == (1, 6), (epoch, edl.step())
""",
    "a loop again after a sample that could not be read": """
class Data(torch.utils.data.Dataset):
    away = [4]
    def __len__(self): return 8
    def __getitem__(self, index):
        if index in self.away: self.away.remove(index); raise OSError("it is away for a moment")
        return float(index)
loop(Data(), batch_size=2)
seen = []
for _ in loader.epochs(1):
    for _ in range(2):
        try:
            for batch in loader: seen += batch.tolist(); train()
            break
        except OSError: pass
assert (seen, edl.step()) == ([*range(8)], 4), (seen, edl.step())
""",
    "a training that ends early": """
loop([0.0] * 4)
over = []
for epoch in loader.epochs(9):
    for _ in loader:
        train()
        over.append(loader.epoch_is_over)
        if edl.step() == 6:
            loader.stop()
            break
assert over == [False, False, False, True, False, False], over
assert (epoch, edl.step()) == (1, 6) and edl.current_worker().finished
""",
    "a warning of a loop that never updates": """
loop([0.0] * 150); heard = sentences()
every_batch(lambda: (opt.zero_grad(), model(torch.ones(1, 1)).sum().backward()))
assert len(heard) == 1 and heard[0].startswith("100 batches in a row"), heard
""",
    "a schedule in steps, and a batch that changes": """
loop([0.0] * 6); heard = sentences()
scheduler = torch.optim.lr_scheduler.StepLR(opt, 2)
for _ in loader.epochs(1):
    for number, _ in enumerate(loader):
        train(); scheduler.step()
        if number > 2: edl.current_worker()._switched(1, 2)  # as a ring of two would
(said,) = heard
assert "StepLR counts steps, and the global batch has gone from 1 to 2 samples" in said, said
assert said.endswith("by edl.in_samples(scheduler, batch=1)"), said
""",
    "batches that are None": """
loop(data, collate_fn=lambda _: None)
seen = []
for _ in loader.epochs(2):
    for batch in loader:
        seen.append(batch)
        train()
assert seen == [None] * 4 and edl.step() == 4
""",
    "sparse gradients": """
model = torch.nn.Embedding(4, 2, sparse=True)
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loop(); every_batch(lambda: train(torch.tensor([1])))
(state,) = sgd.state.values()
assert not state["momentum_buffer"].is_sparse, "a ring could not send it"
""",
    "steps that are skipped": """
loop(); skips()
assert opt.synchronize.__self__._optimizers.loss_scale() == 2.0
""",
    "steps that a fused optimizer skips by itself": """
sgd = torch.optim.SGD(model.parameters(), lr=0.1, fused=True); loop()
def check(moved): assert bool(opt.synchronize.__self__._last_step.skipped) is not moved
skips(check)
""",
    "batches that are left out": """
loop()
for _ in loader.epochs(3):
    for _ in loader:
        if edl.step() % 3: edl.notify_batch_end()
        else: train()
assert edl.step() == 6
""",
    "leaving the epoch after a skipped step": """
loop()
for _ in loader.epochs(3):
    for _ in loader:
        opt.zero_grad(); model(torch.ones(1, 1)).sum().backward()
        break
assert edl.step() == 3
""",
    "a gradient penalty": """
loop()
for _ in loader.epochs(1):
    for _ in loader:
        opt.zero_grad()
        x = torch.ones(1, 1, requires_grad=True)
        loss = model(x).sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()
        opt.synchronize(); opt.step(); opt.synchronize()
assert edl.step() == 2
""",
    "a step that others have completed": """
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1); loop()
from edl.step.engine import RepairDone
from edl.errors import RingBroken
from edl.binding.process import current_worker
worker = current_worker()
def broken():
    raise RingBroken(1, "a test says so")
def repaired(_):
    del worker.loader.wait_for_records
    progress = worker.loader.progress
    progress.complete(worker.loader.wait_for_records())  # by the others
    progress.engine.is_open = progress.engine.completed_by_peers = True
    return RepairDone(worker.loader.place)
worker.loader.repair = repaired
for _ in loader.epochs(1):
    for _ in loader:
        train_it = edl.step() == 0
        opt.zero_grad()
        if not train_it:
            worker.loader.wait_for_records = broken
        model(torch.ones(1, 1)).sum().backward()
        if not train_it:
            assert all(p.grad.eq(0).all() for p in model.parameters()), "the script may look"
        before = model.weight.clone()
        opt.step()
        assert torch.equal(before, model.weight) is not train_it
""",
}
WRONG_USES = {  # by their code: a part of the sentence
    "loop(); loader.epochs()": "does not say how long to train",
    "loop(); loader.steps(2.5)": "the number of steps is 2.5; it must be a whole",
    "edl.rank()": "call edl.init() first",
    "edl.Optimizer(sgd, model)": "call edl.init() first",
    "edl.init(session_timeout_s=-1.0)": "session_timeout_s is -1",
    "edl.init(); edl.track(a=1)": "has no state_dict() and load_state_dict()",
    "edl.init(); edl.DataLoader([])": "the dataset has 0 samples",
    "edl.init(); edl.DataLoader(data, batch_size=0)": "batch_size is 0",
    "edl.init(); edl.DataLoader(data, batch_size=None)": "batch_size is None",
    "edl.init(); edl.DataLoader(data, batch_size=8.0)": "batch_size is 8.0",
    "edl.init(); edl.DataLoader(data, sampler=data)": "does not take a sampler",
    "edl.init(); edl.DataLoader(data, drop_last=True)": "has no drop_last",
    "edl.init(); edl.DataLoader(data, in_order=False)": "take in_order=False",
    "edl.init(); edl.DataLoader(data, num_worker=2)": "unexpected keyword argument 'num_worker'",
    "edl.init(); edl.DataLoader(data, persistent_workers=True)": (
        "persistent_workers option needs num_workers > 0"
    ),
    "edl.init(); edl.DataLoader(torch.utils.data.DataLoader(data))": (
        "takes the place of PyTorch's, and was given one"
    ),
    "edl.init(); edl.DataLoader(data); edl.DataLoader(data)": "two edl data loaders",
    "edl.init(); edl.DataLoader(iter(data))": "the samples of a list_iterator have no numbers",
    """
edl.init()
class Lines(torch.utils.data.IterableDataset):
    def __iter__(self): yield from data
edl.DataLoader(Lines())
""": "the samples of a Lines have no numbers",
    """
loop()
for _ in loader.epochs(2):
    for x in loader: train(x.float()[None])
    data += [2.0]
""": "the data set has 3 samples now, and had 2 when edl.DataLoader was made",
    """
edl.init(); loader = edl.DataLoader(edl.data.stream([0], lambda _: data[edl.rank() :: edl.size()]))
for _ in loader.epochs(1): list(loader)
""": "the stream asks for edl.rank(); all workers must read the same samples",
    """
loop(edl.data.stream([0], lambda _: [open("/dev/null")]), num_workers=1)
for _ in loader.epochs(1): list(loader)
""": "a sample of the stream cannot be sent to the loader's processes",
    "edl.init(); edl.DataLoader(torch.utils.data.IterableDataset)": (
        "was given the class IterableDataset"
    ),
    "loop(edl.data.stream([0, 1], lambda _: []))\nfor _ in loader.epochs(1): list(loader)": (
        "the stream has 0 samples"
    ),
    """
from edl.errors import UsageError
edl.init(); loader = edl.DataLoader(edl.data.stream([0], lambda _: data))
try: len(loader)
except TypeError as error: raise UsageError(str(error)) from None
""": "a DataLoader of a stream has no length",
    "edl.init(); next(iter(edl.DataLoader(data)))": "for epoch in loader.epochs(n)",
    "edl.init(); edl.Optimizer(model, model)": "wraps a torch.optim.Optimizer",
    "edl.init(); edl.Optimizer(sgd)": "edl.Optimizer needs the model that the optimizer trains",
    "edl.init(); edl.Optimizer(torch.optim.SparseAdam(model.parameters()), model)": (
        "gradients are dense after their reduction"
    ),
    "edl.init(); edl.Optimizer(edl.Optimizer(sgd, model), model)": (
        "wrapped by edl.Optimizer (or Horovod) already"
    ),
    "edl.init(); edl.Optimizer(torch.optim.LBFGS(model.parameters()), model)": (
        "LBFGS evaluates its closure more than once"
    ),
    """
import sys
hook = sys.excepthook  # init_process_group puts "[rank0]: " before what is said
edl.init()
dist = torch.distributed
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sys.excepthook = hook
edl.Optimizer(sgd, torch.nn.parallel.DistributedDataParallel(model))
""": "so does DistributedDataParallel: give edl.Optimizer the bare module",
    "edl.init(); edl.Optimizer(sgd, model).step()": "without a batch from the edl loader",
    "loop()\nfor _ in loader.epochs(1): list(loader)": (
        "asked for the next batch without calling optimizer.step()"
    ),
    """
loop()
for _ in loader.epochs(1):
    batches = iter(loader)
    ahead = next(batches, None)
    while ahead is not None:
        batch, ahead = ahead, next(batches, None)
        train()
""": "A prefetcher that takes batches ahead of their steps is not needed: loop over the loader",
    "loop(); next(iter(loader))": (
        "to look at one batch before, take PyTorch's loader: next(iter(torch.utils.data.DataLoader"
    ),
    "loop(); every_batch(lambda: edl.gather(torch.ones(1)))": (
        "call edl.mean(), edl.gather() and the like after the update of a batch"
    ),
    """
edl.init(); loader = edl.DataLoader(data); opt = sgd; every_batch(train)
""": "write optimizer = edl.Optimizer(optimizer, model) before the loop",
    "loop(); every_batch(lambda: [model(torch.ones(1, 1)).sum().backward() for _ in (1, 2)])": (
        "was computed twice in one step"
    ),
    """
loop()
for _ in loader.epochs(4):
    for batch in loader:
        (model(torch.ones(1, 1)).sum() / 4).backward()
        if (edl.step() + 1) % 4 == 0: opt.step(); opt.zero_grad()
""": "to accumulate gradients over batches, use edl.no_sync()",
    "edl.init()\nwith edl.no_sync(): pass": "create an edl.Optimizer before edl.no_sync()",
    "edl.init(); edl.Optimizer(sgd, model, backward_passes_per_step=0)": (
        "backward_passes_per_step is 0; it must be at least 1"
    ),
    """
loop()
for _ in loader.epochs(1):
    for batch in loader:
        with edl.no_sync(): model(torch.ones(1, 1)).sum().backward()
    opt.step()
""": "batches were handed out since the last optimizer.step()",
    "loop(); every_batch(train)\nfor _ in loader.epochs(2): pass": "this job's training is over",
    "loop()\nfor _ in loader.epochs(1):\n for _ in loader: train()\n for _ in loader: pass": (
        "all samples of this epoch are trained, so a second loop over them would see none"
    ),
    "loop(); edl.mean(1.0)": "the loop over the epochs: training has not begun",
    "loop(); every_batch(lambda: edl.mean(1.0))": (
        "call edl.mean(), edl.gather() and the like after the update of a batch"
    ),
    "loop(); every_batch(train); edl.mean(1.0)": (
        "inside the loop over the epochs: all epochs are trained"
    ),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[int, str]]:
    # The first optimizer imports much more of PyTorch: once, rather than in each process.
    imports = "import torch; import edl.torch as edl; torch.optim.SGD([torch.zeros(1)], lr=0.1)"
    return answers_of({code: code for code in WRONG_USES} | RIGHT_USES, imports, SETUP)


@pytest.mark.parametrize("name", RIGHT_USES)
def test_other_ways_to_write_it(name: str, answers: dict[str, tuple[int, str]]) -> None:
    code, stderr = answers[name]
    assert code == 0, stderr


@pytest.mark.parametrize(("code", "sentence"), WRONG_USES.items(), ids=WRONG_USES.values())
def test_wrong_use_gets_a_sentence(
    code: str, sentence: str, answers: dict[str, tuple[int, str]]
) -> None:
    assert_a_sentence(answers[code], sentence)
