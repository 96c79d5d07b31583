"""A knowledge-graph step over shards: each replica has a part of the entities, and tails cross by all-to-all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu.emulator import install

SHARDS, ENTITIES, RELATIONS, WIDTH, PAIRS, UPDATES = 4, 6, 3, 8, 5, 20


def tables():
    torch.manual_seed(0)
    return torch.randn(SHARDS, ENTITIES, WIDTH), torch.randn(RELATIONS, WIDTH)


def batches():
    """For each update: heads and relations by shard of head, shard of tail and pair; tails by shard of tail first."""
    generator = torch.Generator().manual_seed(1)
    shape = (SHARDS, SHARDS, PAIRS)
    for _ in range(UPDATES):
        heads, tails = (torch.randint(0, ENTITIES, shape, generator=generator) for _ in range(2))
        yield heads, torch.randint(0, RELATIONS, shape, generator=generator), tails


def score(head, relation, tail):
    return -(head + relation - tail).abs().sum(-1)


def plain():
    entities, relations = (table.requires_grad_() for table in tables())
    optimizer = torch.optim.Adam([entities, relations], lr=0.01)
    losses = []
    for heads, kinds, tails in batches():
        optimizer.zero_grad()
        of_shard = torch.arange(SHARDS)[:, None, None]
        # Shard i sends to shard j the tails that j requests of i.
        rows = entities[of_shard, tails].transpose(0, 1)
        scores = score(entities[of_shard, heads], relations[kinds], rows)
        each = nn.functional.softplus(-scores).sum((1, 2))
        each.sum().div(SHARDS).backward()
        optimizer.step()
        losses.append(each.detach())
    return torch.stack(losses), entities.detach(), relations.detach()


def test_it_trains_as_one_table_on_the_host():
    with install():
        import poptorch

        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                entities, relations = tables()
                self.entities, self.relations = nn.Parameter(entities), nn.Parameter(relations)

            def forward(self, heads, kinds, tails):
                wanted = self.entities[tails[0].flatten()].view(SHARDS, PAIRS, WIDTH)
                (rows,) = poptorch.custom_op(
                    [wanted], "ReplicatedAllToAll", "ai.graphcore", 1, [torch.zeros_like(wanted)], attributes={}
                )
                scores = score(self.entities[heads[0].flatten()].view_as(rows), self.relations[kinds[0]], rows)
                return poptorch.identity_loss(nn.functional.softplus(-scores), reduction="sum")

        options = poptorch.Options().replicationFactor(SHARDS).outputMode(poptorch.OutputMode.All)
        options.showCompilationProgressBar(False)._popart.set("saveInitializersToFile", "weights.onnx")
        model = Step()
        training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.01))
        training.entities.replicaGrouping(
            poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
        )
        losses = torch.stack([training(*batch) for batch in batches()])
        training.destroy()
    wanted, entities, relations = plain()
    assert torch.allclose(losses, wanted, rtol=1e-4)
    assert torch.allclose(model.entities, entities, atol=1e-4)
    assert torch.allclose(model.relations, relations, atol=1e-4)
    assert losses[-1].sum() < losses[0].sum()


@pytest.mark.parametrize("retrieval", ["OnePerGroup"])
def test_all_shards_score_against_all_entities(retrieval):
    """In inference every replica gathers the queries of the others, as an evaluation over all entities does."""
    with install():
        import poptorch

        class Ranks(nn.Module):
            def __init__(self):
                super().__init__()
                self.entities = nn.Parameter(tables()[0])

            def forward(self, query):
                example = torch.zeros(SHARDS, WIDTH)
                (queries,) = poptorch.custom_op([query[0]], "ReplicatedAllGather", "ai.graphcore", 1, [example])
                return (queries @ self.entities.t()).max(1).values[None]

        options = poptorch.Options().replicationFactor(SHARDS).showCompilationProgressBar(False)
        executor = poptorch.inferenceModel(Ranks(), options)
        executor.entities.replicaGrouping(
            poptorch.CommGroupType.NoGrouping, 0, getattr(poptorch.VariableRetrievalMode, retrieval)
        )
        queries = torch.randn(SHARDS, WIDTH)
        best = executor(queries)
    assert torch.allclose(best, torch.einsum("qw,sew->sqe", queries, tables()[0]).amax(-1), atol=1e-5)
