"""Sequences of many lengths, in three ways: a program for each length, one for all, and one for each bucket."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import BucketBatchSampler, IPUEvents, PadToBucket, bucket_boundaries, create_ipu_trainer

SAMPLES, BATCH = 160, 4
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(2, 8, (SAMPLES,), generator=generator).tolist()
data = [(torch.randint(1, 20, (length,), generator=generator), length % 2) for length in lengths]


class Words(nn.Module):
    """Says whether a sequence has an odd length, from the mean and the number of its words."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(9, 2)

    def forward(self, ids):
        real = (ids != 0).float().unsqueeze(-1)
        mean = (self.embedding(ids) * real).sum(1) / real.sum(1)
        return self.head(torch.cat([mean, real.sum(1)], 1))


def train(boundaries):
    """Return the programs that were compiled, and the share of padding."""
    torch.manual_seed(0)
    sampler = BucketBatchSampler(lengths, boundaries, BATCH)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadToBucket(boundaries))
    model = Words()
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters(), lr=0.01), nn.CrossEntropyLoss())
    compiled = []
    trainer.add_event_handler(IPUEvents.COMPILE_COMPLETED, lambda: compiled.append(1))
    trainer.run(loader)
    trainer.ipu.close()
    return len(compiled), sampler.padding


found = {
    "a program for each length": train(sorted(set(lengths))),
    "two buckets": train(bucket_boundaries(lengths, 2)),
    "one program for all": train([max(lengths)]),
}
for name, (programs, padding) in found.items():
    print(f"{name}: {programs} programs, {padding:.0%} of the elements are padding")
assert [programs for programs, _ in found.values()] == [6, 2, 1]
assert 0 == found["a program for each length"][1] < found["two buckets"][1] < found["one program for all"][1]
