"""A graph network with fixed-size batches, whose library teaches PopTorch its batches and replaces an operator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu.emulator import install

NODES, EDGES, GRAPHS, UPDATES = 12, 24, 3, 20


class Batch:
    """Graphs padded to a fixed number of nodes and edges, as one value."""

    def __init__(self, x, edges, graph, y):
        self.x, self.edges, self.graph, self.y = x, edges, graph, y


class GraphData(torch.utils.data.Dataset):
    """Batches of graphs; edges of padding lead from the last node to itself, which is of the last graph."""

    def __len__(self):
        return 2 * UPDATES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(NODES, 4, generator=generator)
        real = torch.randint(0, NODES - 1, (2, EDGES - 6), generator=generator)
        edges = torch.cat([real, torch.full((2, 6), NODES - 1)], 1)
        graph = torch.arange(NODES) * GRAPHS // NODES
        return x, edges, graph, torch.randn(GRAPHS, generator=generator)


def joined(messages, target, count):
    """Sum messages by their target: a function that the library replaces while a model is traced."""
    out = messages.new_zeros(count, messages.shape[1])
    return out.index_add(0, target, messages)  # does not compile


def joined_on_ipu(messages, target, count):
    index = target[:, None].expand_as(messages)
    return torch.zeros(count, messages.shape[1], device=messages.device).scatter_add(0, index, messages)


class Substitution:
    def replace(self):
        global joined
        self.before, joined = joined, joined_on_ipu

    def restore(self):
        global joined
        joined = self.before


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.own, self.others, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, batch):
        source, target = batch.edges
        messages = joined(self.others(batch.x)[source], target, NODES)
        hidden = torch.relu(self.own(batch.x) + messages)
        out = self.head(joined(hidden, batch.graph, GRAPHS))[:, 0]
        return out, nn.functional.mse_loss(out, batch.y)


def plain():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = GraphData()
    losses = []
    for update in range(UPDATES):
        optimizer.zero_grad()
        parts = [model(Batch(*data[index]))[1] for index in (2 * update, 2 * update + 1)]
        sum(parts).div(2).backward()
        optimizer.step()
        losses.append(sum(parts).item() / 2)
    return losses, model


def test_it_trains_as_on_the_host():
    """Two mini-batches an update, each a value of a type that PopTorch does not know of itself."""
    with install():
        import poptorch

        class Parser(poptorch.ICustomArgParser):
            def yieldTensors(self, struct):
                yield from (struct.x, struct.edges, struct.graph, struct.y)

            def reconstruct(self, original_structure, tensor_iterator):
                return Batch(*(next(tensor_iterator) for _ in range(4)))

        def collate(samples):
            parts = list(poptorch._utils.combine_batch_tensors_gen([[each[None] for each in s] for s in samples]))
            return Batch(*parts)

        class Unpacked(nn.Module):
            """The mini-batch without the dimension that batches are joined along."""

            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, batch):
                return self.model(Batch(batch.x[0], batch.edges[0], batch.graph[0], batch.y[0]))

        context = poptorch._OverwriteContextManager
        context.registerSubsitutionManager(Substitution)
        poptorch.registerCustomArgParser(Batch, Parser())
        try:
            options = poptorch.Options().showCompilationProgressBar(False).outputMode(poptorch.OutputMode.All)
            options.Training.gradientAccumulation(2)
            loader = poptorch.DataLoader(options, GraphData(), batch_size=1, collate_fn=collate)
            model = Net()
            training = poptorch.trainingModel(
                Unpacked(model), options, poptorch.optim.Adam(model.parameters(), lr=0.01)
            )
            losses = [training(batch)[1].mean().item() for batch in loader]
            training.destroy()
        finally:
            poptorch.registerCustomArgParser(Batch, None)
            context._subsitution_manager_types.remove(Substitution)
    wanted, reference = plain()
    assert losses == pytest.approx(wanted, rel=1e-4)
    for ours, theirs in zip(model.parameters(), reference.parameters()):
        assert torch.allclose(ours, theirs, atol=1e-4)
