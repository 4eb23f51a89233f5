"""The counting model in PyTorch: its parameters prove which samples were trained, see tally.py."""

import torch
from tally import SIGNAL, counted


class Indices(torch.utils.data.Dataset):
    """Sample i is the number i."""

    def __init__(self, samples, late=None):
        self._samples = samples
        self._late = late

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        return index if self._late is None else self._late.load(index)


class Stateful(torch.utils.data.IterableDataset):
    """The numbers from 0 on, and where it is in them, as torchdata's StatefulDataLoader asks."""

    def __init__(self, samples):
        self._samples = samples
        self._next = 0

    def __iter__(self):
        while self._next < self._samples:
            self._next += 1
            yield self._next - 1

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._next = state["next"]


class Averages:
    """What scripts keep: weights that follow, not trained, and the norm of gradients."""

    def __init__(self, model):
        self._model = model
        self._norm = 0.0
        model.target = torch.nn.Parameter(torch.zeros_like(model.w), requires_grad=False)

    def before_step(self):
        self._norm = 0.9 * self._norm + 0.1 * self._model.w.grad.norm().item()

    @torch.no_grad()
    def after_step(self):
        self._model.target.lerp_(self._model.w, 0.1)

    def state_dict(self):
        return {"norm": self._norm}

    def load_state_dict(self, state):
        self._norm = state["norm"]

    def report(self):
        return {"averages": [self._norm, self._model.target.sum().item()]}


class CountingModel(torch.nn.Module):
    def __init__(self, samples):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        self.register_buffer("before", torch.zeros(samples, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(samples, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if SIGNAL:
            self.common = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, indices):
        loss = self.w[indices].mean()
        return loss + SIGNAL * self.common if SIGNAL else loss

    @torch.no_grad()
    def tally(self):
        """Count what the last step did. Tells what was wrong with it, or None."""
        times, problem = counted(self.before.numpy(), self.w.numpy())
        self.before.copy_(self.w)
        self.steps += 1
        self.count += torch.from_numpy(times)
        return problem
