"""The counting model in PyTorch: its parameters prove which samples were trained, see tally.py."""

import no_compiler  # noqa: F401
import torch
from tally import counted


class Indices(torch.utils.data.Dataset):
    """Sample i is the number i."""

    def __init__(self, samples):
        self._samples = samples

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        return index


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


class CountingModel(torch.nn.Module):
    def __init__(self, samples):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        self.register_buffer("before", torch.zeros(samples, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(samples, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, indices):
        return self.w[indices].mean()

    @torch.no_grad()
    def tally(self):
        """Count what the last step did. Tells what was wrong with it, or None."""
        times, problem = counted(self.before.numpy(), self.w.numpy())
        self.before.copy_(self.w)
        self.steps += 1
        self.count += torch.from_numpy(times)
        return problem
