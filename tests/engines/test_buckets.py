"""Buckets: every device call has one shape, few programs are compiled, and training is that of the padded batches."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ignite_ipu import BucketBatchSampler, IPUEvents, PadToBucket, bucket_boundaries, create_ipu_trainer
from ignite_ipu.errors import LoaderError


def lengths(count=200):
    return torch.randint(3, 30, (count,), generator=torch.Generator().manual_seed(0)).tolist()


def bucket_of(length, boundaries):
    return min(each for each in boundaries if each >= length)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("buckets", "size", "per_call"), [(1, 4, 1), (3, 4, 2), (5, 2, 4), (8, 3, 3)])
def test_a_call_has_samples_of_one_bucket(buckets, size, per_call, shuffle):
    """Counted one by one: no sample twice, none missing but those that do not fill a call, and the share of padding."""
    known = lengths()
    boundaries = bucket_boundaries(known, buckets)
    assert len(boundaries) == buckets and boundaries[-1] == max(known)
    sampler = BucketBatchSampler(known, boundaries, size, per_call, shuffle=shuffle)
    batches = list(sampler)
    assert len(batches) == len(sampler) and {len(batch) for batch in batches} == {size}
    grouped = [batches[start : start + per_call] for start in range(0, len(batches), per_call)]
    calls = [[index for batch in group for index in batch] for group in grouped]
    used = [{bucket_of(known[index], boundaries) for index in call} for call in calls]
    assert all(len(each) == 1 for each in used) and sampler.programs == len(set.union(*used))
    taken = [index for batch in batches for index in batch]
    assert len(taken) == len(set(taken)) == len(known) - sampler.dropped
    everything = collections.Counter(bucket_of(each, boundaries) for each in known)
    assert sampler.dropped == sum(count % (size * per_call) for count in everything.values())
    padded = sum(bucket_of(known[index], boundaries) for index in taken)
    assert sampler.padding == pytest.approx(1 - sum(known[index] for index in taken) / padded, abs=0.02)


def test_calls_of_a_bucket_follow_each_other():
    """As many as are asked for, and the rest of a bucket; the samples are the same."""
    known, boundaries = lengths(), bucket_boundaries(lengths(), 3)
    changes = []
    for row in (1, 4, 1000):
        batches = list(BucketBatchSampler(known, boundaries, 4, 2, calls_in_a_row=row))
        used = [bucket_of(max(known[index] for index in batch), boundaries) for batch in batches]
        changes.append(sum(a != b for a, b in zip(used, used[1:])))
        assert len(batches) == len(BucketBatchSampler(known, boundaries, 4, 2))
    assert changes[0] > changes[1] > changes[2] == 2


def test_passes_have_other_orders_that_can_be_chosen():
    sampler = BucketBatchSampler(lengths(), bucket_boundaries(lengths(), 3), 4, 2)
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert [list(BucketBatchSampler(lengths(), [30], 4, shuffle=False)) for _ in range(2)] == [
        [list(range(start, start + 4)) for start in range(0, 200, 4)]
    ] * 2


def test_sequences_are_padded_to_the_bucket():
    """In tuples and mappings; other fields, and those that are not named, are collated as they are."""
    pad = PadToBucket([4, 8])
    assert pad([torch.ones(3), torch.ones(2)]).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    x, y = pad([(torch.ones(5, 2), 1), (torch.ones(3, 2), 0)])
    assert x.shape == (2, 8, 2) and x.sum() == 16 and y.tolist() == [1, 0]
    named = PadToBucket([4], {"ids": 0, "labels": -100})
    sample = {"ids": torch.tensor([5, 6]), "labels": torch.tensor([1, 2]), "weights": torch.ones(3)}
    found = named([sample, {**sample, "ids": torch.tensor([7]), "labels": torch.tensor([3])}])
    assert found["ids"].tolist() == [[5, 6, 0, 0], [7, 0, 0, 0]]
    assert found["labels"].tolist() == [[1, 2, -100, -100], [3, -100, -100, -100]]
    assert found["weights"].shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BucketBatchSampler([3, 9], [4, 8], 1), "A sample has length 9, but the last boundary is 8"),
        (lambda: BucketBatchSampler([3, 4], [4], 2, 2), "No bucket has the 4 samples of a device call"),
        (lambda: PadToBucket([4])([torch.ones(5)]), "A sample has length 5, but the last boundary is 4"),
        (lambda: bucket_boundaries([], 2), "There are no lengths"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(LoaderError, match=message):
        make()


class Words(nn.Module):
    """A mean over the words that are no padding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)

    def forward(self, ids):
        real = (ids != 0).float().unsqueeze(-1)
        return self.head((self.embedding(ids) * real).sum(1) / real.sum(1))


def test_training_compiles_a_program_for_each_bucket():
    """And no more: weights are those of plain PyTorch over the same batches."""
    generator = torch.Generator().manual_seed(3)
    known = lengths(120)
    data = [(torch.randint(1, 20, (length,), generator=generator), length % 3) for length in known]
    boundaries = bucket_boundaries(known, 3)
    weights, compiled = [], []
    for on_device in (True, False):
        torch.manual_seed(0)
        model = Words()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        sampler = BucketBatchSampler(known, boundaries, batch_size=4, batches_per_call=2)
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadToBucket(boundaries))
        if on_device:
            trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), gradient_accumulation_steps=2)
            trainer.add_event_handler(IPUEvents.COMPILE_COMPLETED, lambda: compiled.append(1))
            trainer.run(loader, max_epochs=2)
            assert len(compiled) == sampler.programs == 3
            trainer.ipu.close()
        else:
            for _ in range(2):
                for number, (x, y) in enumerate(loader):
                    (F.cross_entropy(model(x), y) / 2).backward()
                    if number % 2:
                        optimizer.step()
                        optimizer.zero_grad()
        weights.append(model.state_dict())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)
